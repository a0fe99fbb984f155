"""When a schedule can run: its own arithmetic, and what each framework adds to it."""

from typing import Literal

from planner.layout import ScheduleName

Backend = Literal["any", "torch", "megatron", "deepspeed", "nanotron"]
"""``any`` asks only what the action lists themselves need."""

_BACKEND_SCHEDULES: dict[str, tuple[ScheduleName, ...]] = {
    "torch": ("gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "dualpipe"),
    "megatron": ("1f1b", "interleaved"),
    "deepspeed": ("1f1b",),
    "nanotron": ("gpipe", "1f1b"),
}


def why_not(
    schedule: ScheduleName, *, pp: int, vpp: int, microbatches: int, backend: Backend = "any"
) -> str | None:
    """Why this schedule cannot run so, or None when it can.

    The answer names the value, the rule, whose rule it is, and what would be legal.

    >>> why_not("1f1b", pp=4, vpp=1, microbatches=2)
    >>> why_not("1f1b", pp=4, vpp=1, microbatches=2, backend="torch")
    'microbatches=2: 1f1b in torch needs at least pp=4; use microbatches=4 or schedule=gpipe'
    """
    known = _BACKEND_SCHEDULES.get(backend)
    if known is not None and schedule not in known:
        return f"schedule={schedule}: {backend} runs only {', '.join(known)}"
    if pp == 1 and backend != "any" and (vpp > 1 or schedule not in ("gpipe", "1f1b")):
        return f"schedule={schedule}, vpp={vpp}: pp=1 has no pipeline; use pp=2 or schedule=1f1b"
    return (
        _chunks(schedule, pp=pp, vpp=vpp)
        or _enough(schedule, pp=pp, microbatches=microbatches, backend=backend)
        or _rounds(schedule, pp=pp, vpp=vpp, microbatches=microbatches, backend=backend)
    )


def _chunks(schedule: ScheduleName, *, pp: int, vpp: int) -> str | None:
    if schedule in ("gpipe", "1f1b") and vpp != 1:
        return f"vpp={vpp}: {schedule} has one chunk per rank; use vpp=1 or schedule=interleaved"
    if schedule == "interleaved" and vpp < 2:
        return f"vpp={vpp}: interleaved needs at least two chunks; use vpp=2 or schedule=1f1b"
    if schedule in ("zbv", "dualpipe") and vpp != 2:
        return (
            f"vpp={vpp}: {schedule} has exactly two chunks per rank; use vpp=2 or schedule=zb-h1"
        )
    return None


def _enough(schedule: ScheduleName, *, pp: int, microbatches: int, backend: Backend) -> str | None:
    if schedule == "1f1b" and backend == "torch" and microbatches < pp:
        return (
            f"microbatches={microbatches}: 1f1b in torch needs at least pp={pp}; "
            f"use microbatches={pp} or schedule=gpipe"
        )
    if schedule == "dualpipe" and microbatches < 2 * pp:
        return (
            f"microbatches={microbatches}: dualpipe needs at least 2 pp = {2 * pp}; "
            f"use microbatches={2 * pp} or schedule=zbv"
        )
    return None


def _rounds(
    schedule: ScheduleName, *, pp: int, vpp: int, microbatches: int, backend: Backend
) -> str | None:
    if schedule != "interleaved" and not (schedule == "zb-h1" and vpp > 1):
        if schedule == "zb-h1" and backend == "torch":
            return _torch_rounds(schedule, pp=pp, microbatches=microbatches)
        return None
    if backend == "megatron" and microbatches % pp:
        below = microbatches // pp * pp
        legal = f"{below} or {below + pp}" if below else f"{pp} or schedule=1f1b"
        return (
            f"microbatches={microbatches}: {schedule} in megatron needs a multiple of pp={pp}; "
            f"use microbatches={legal}"
        )
    return _torch_rounds(schedule, pp=pp, microbatches=microbatches)


def _torch_rounds(schedule: ScheduleName, *, pp: int, microbatches: int) -> str | None:
    rounds = max(1, microbatches // pp)
    if microbatches % rounds == 0:
        return None
    below = microbatches // rounds * rounds
    return (
        f"microbatches={microbatches}: {schedule} runs {rounds} equal rounds of at least pp={pp}; "
        f"use microbatches={below // pp * pp} or {(microbatches // pp + 1) * pp}"
    )
