"""The predicted step as a Chrome trace (Trace Event Format), for ui.perfetto.dev.

One process for each pipeline rank, which stands for all ranks that share its stage; lanes for
compute and for each communicator. The pipeline's part is the played schedule; inside an action
the exposed communication has the share that the estimate gives it over the whole step.

Reference: "Trace Event Format", Google, 2016: complete events ``X``, flows ``s`` and ``f``,
metadata ``M``; times in microseconds.
"""

from typing import Any

from planner import __version__
from planner.layout import Layout, format_layout
from planner.plan import Plan
from planner.schedules.timeline import Event
from planner.units import MICROSECOND

COMPUTE, SEND_FORWARD, SEND_BACKWARD = 1, 2, 3
LANES = {COMPUTE: "compute", SEND_FORWARD: "send activations", SEND_BACKWARD: "send gradients"}
INSIDE = {"tp": 4, "cp": 5, "ep": 6}
"""Communicators whose exposed time is inside the actions of the pipeline."""
DP = 7
NAMES = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
_PIPELINE = {"forward", "backward", "recompute", "bubble", "pp", *INSIDE}

Slice = dict[str, Any]


def trace_plan(plan: Plan, *, cluster: str | None = None) -> dict[str, Any]:
    """The trace of a plan's predicted step, as a JSON object.

    Raises:
        ValueError: If the plan's cluster is not known by its name; ``cluster`` then names it.
    """
    from planner.calibration import load_calibration
    from planner.cost.step import estimate, play_estimate
    from planner.setting import setting_of

    setting = setting_of(plan, cluster=cluster)
    time = estimate(
        setting.model, setting.job, setting.cluster, setting.framework, plan.layout,
        load_calibration(plan.calibration),
    )  # fmt: skip
    played = play_estimate(plan.layout, time)
    shares = _shares(time.parts)
    events = played.events()
    slices = [one for event in events for one in _action_slices(event, shares)]
    slices += _sends(events, plan.layout, time.send_seconds)
    after = {name: seconds for name, seconds in time.parts.items()
             if name not in _PIPELINE and seconds > 0}  # fmt: skip
    for rank in range(plan.layout.pp):
        slices += _after(rank, played.makespan_seconds, after)
    used = {(one["pid"], one["tid"]) for one in slices}
    return {
        "displayTimeUnit": "ms",
        "otherData": {"program": f"parallel-planner {__version__}", "model": plan.model.name,
                      "layout": format_layout(plan.layout),
                      "predicted_step_seconds": time.step_seconds},
        "traceEvents": [*_names(plan, used), *slices],
    }  # fmt: skip


def _shares(parts: dict[str, float]) -> dict[str, float]:
    """Of an action's time, what each communicator takes."""
    inside = {axis: parts.get(axis, 0.0) for axis in INSIDE}
    compute = sum(parts.get(name, 0.0) for name in ("forward", "backward", "recompute"))
    whole = compute + sum(inside.values())
    return {axis: seconds / whole for axis, seconds in inside.items() if seconds > 0}


def _slice(name: str, rank: int, lane: int, start: float, seconds: float) -> Slice:
    return {
        "name": name, "ph": "X", "cat": LANES.get(lane, "collective"), "pid": rank, "tid": lane,
        "ts": start / MICROSECOND, "dur": seconds / MICROSECOND,
    }  # fmt: skip


def _action_slices(event: Event, shares: dict[str, float]) -> list[Slice]:
    """An action, and its share of each communicator beside it, at its end."""
    action, seconds = event.action, event.end_seconds - event.start_seconds
    name = f"{NAMES[action.kind]} {action.microbatch}"
    one = _slice(name, event.rank, COMPUTE, event.start_seconds, seconds)
    one["args"] = {"stage": action.stage, "microbatch": action.microbatch, "action": str(action)}
    slices, end = [one], event.end_seconds
    for axis, share in shares.items():
        end -= seconds * share
        slices.append(_slice(f"{axis} of {name}", event.rank, INSIDE[axis], end, seconds * share))
    return slices


def _sends(events: list[Event], layout: Layout, send_seconds: float) -> list[Slice]:
    """Sends between stages of different ranks: a slice on the sender, an arrow to the receiver."""
    starts = {(e.action.stage, e.action.kind in "BI", e.action.microbatch): e
              for e in events if e.action.kind != "W"}  # fmt: skip
    last: dict[tuple[int, int], Slice] = {}
    slices: list[Slice] = []
    for event in sorted(starts.values(), key=lambda e: e.end_seconds):
        back = event.action.kind in "BI"
        stage = event.action.stage + (-1 if back else 1)
        receiver = starts.get((stage, back, event.action.microbatch))
        if receiver is None or receiver.rank == event.rank:
            continue
        lane = SEND_BACKWARD if back else SEND_FORWARD
        one = _slice(f"send {event.action}", event.rank, lane, event.end_seconds, send_seconds)
        before = last.get((event.rank, lane))
        if before is not None:  # one lane holds one send at a time
            before["dur"] = min(before["dur"], one["ts"] - before["ts"])
        last[event.rank, lane] = one
        # Ids count pairs, so that both ends of an arrow have the same.
        slices += [one, *_arrow(len(slices) // 3, one, receiver)]
    return slices


def _arrow(number: int, send: Slice, receiver: Event) -> list[Slice]:
    common = {"name": "send", "cat": "flow", "id": number}
    return [
        {**common, "ph": "s", "pid": send["pid"], "tid": send["tid"], "ts": send["ts"]},
        {**common, "ph": "f", "bp": "e", "pid": receiver.rank, "tid": COMPUTE,
         "ts": receiver.start_seconds / MICROSECOND},
    ]  # fmt: skip


def _after(rank: int, start: float, parts: dict[str, float]) -> list[Slice]:
    """What follows the pipeline, one after the other: gradients, optimizer, host."""
    slices = []
    for name, seconds in parts.items():
        slices.append(_slice(name, rank, DP if name == "dp" else COMPUTE, start, seconds))
        start += seconds
    return slices


def _names(plan: Plan, used: set[tuple[int, int]]) -> list[Slice]:
    """Names of processes and lanes, in order."""
    layout = plan.layout
    lanes = LANES | {lane: f"{axis} communicator" for axis, lane in INSIDE.items()}
    lanes[DP] = "dp communicator"
    each = layout.world_size // layout.pp
    rows: list[Slice] = []
    for rank in range(layout.pp):
        first = rank * layout.stride("pp")
        label = f"pipeline rank {rank} (rank {first}, for {each} alike)"
        rows.append({"name": "process_name", "ph": "M", "pid": rank, "args": {"name": label}})
        rows.append({"name": "process_sort_index", "ph": "M", "pid": rank,
                     "args": {"sort_index": rank}})  # fmt: skip
        rows += [
            {"name": "thread_name", "ph": "M", "pid": rank, "tid": lane, "args": {"name": name}}
            for lane, name in lanes.items()
            if (rank, lane) in used
        ]
    return rows
