"""When nothing fits, what would; when fewer devices would be faster, how many."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from planner.cost.memory.states import bytes_per_parameter
from planner.rules import Question
from planner.rules.batch import nearest_batches
from planner.search.constraints import Constraints
from planner.search.pricing import Pricing
from planner.search.result import Candidate, Remedy

Best = Callable[..., Candidate | None]
"""The best layout of a question, quickly: (pricing, constraints, full space or not), and a
step that it must beat."""

SIMPLE: dict[str, tuple[object, ...]] = {
    "cp": (1,), "vpp": (1,), "schedule": ("1f1b",), "etp": (1,), "offload_optimizer": (False,),
}  # fmt: skip
MOST_DEVICES = 2**17
"""More than any machine has: a job that does not fit there is not helped by more."""


def with_devices(pricing: Pricing, num_devices: int) -> Pricing:
    """The same question for another number of devices."""
    return replace(pricing, question=replace(pricing.question, num_devices=num_devices))


def simple(constraints: Constraints) -> Constraints:
    """The user's constraints, and plain choices where they leave room."""
    allowed = {**SIMPLE, **constraints.allowed}
    return Constraints(allowed=allowed, forbidden=constraints.forbidden)


def reference(
    pricing: Pricing, constraints: Constraints, best: Best
) -> tuple[Candidate | None, int]:
    """The best layout on one device, or on the fewest (a power of two) on which the job fits.

    Degrees that the user fixed do not bind it.
    """
    free = Constraints(
        allowed={n: v for n, v in constraints.allowed.items()
                 if n in ("fused_loss", "recompute", "offload_optimizer")},
    )  # fmt: skip
    count = 1
    while count < _least_devices(pricing):
        count *= 2
    while count < pricing.question.num_devices:
        found = best(with_devices(pricing, count), simple(free), False)
        if found is not None:
            return found, count
        count *= 2
    return None, pricing.question.num_devices


def _least_devices(pricing: Pricing) -> float:
    """Devices that hold one copy of the model's states between them, and nothing else."""
    question = pricing.question
    weights = bytes_per_parameter(question.job, question.framework)
    each = weights.parameter + weights.gradient
    return each * question.model.total_parameters / pricing.limit_bytes


def fewer_devices(
    pricing: Pricing, constraints: Constraints, best: Best, now: Candidate
) -> tuple[Remedy, ...]:
    """Smaller numbers of devices that would be faster than all of them, fastest first."""
    devices, node = pricing.question.num_devices, pricing.question.cluster.devices_per_node
    counts = {1 << (devices.bit_length() - 1), devices // node * node, devices // 2, node}
    if devices % 2:
        counts.add(devices - 1)
    found = []
    for count in sorted(c for c in counts if 0 < c < devices):
        fewer = with_devices(pricing, count)
        other = best(fewer, simple(constraints), False, bound=now.step_seconds)
        if other is not None and other.step_seconds < now.step_seconds:
            found.append(
                Remedy(
                    change=f"leave {devices - count} of {devices} devices idle",
                    num_devices=count, candidate=other,
                )
            )  # fmt: skip
    return tuple(sorted(found, key=lambda r: r.candidate.step_seconds if r.candidate else 0.0))


def remedies(pricing: Pricing, constraints: Constraints, best: Best) -> tuple[Remedy, ...]:
    """What would make a job fit that fits nowhere: switches first, then devices, then batch."""
    question = pricing.question
    devices = question.num_devices
    found = [
        Remedy(change=change, num_devices=devices, candidate=candidate)
        for change, other, full in _switches(pricing)
        if (candidate := best(other, constraints, full)) is not None
    ]
    found += _more_devices(pricing, constraints, best)
    if not found and question.job.global_batch % devices:
        found = _other_batches(pricing, constraints, best)
    return tuple(found)


def _switches(pricing: Pricing) -> Iterator[tuple[str, Pricing, bool]]:
    question = pricing.question

    def asking(**changes: object) -> Pricing:
        job = replace(question.job, **changes)  # type: ignore[arg-type]
        return replace(pricing, question=replace(question, job=job))

    if question.framework.offloads_optimizer:
        yield "offload optimizer states, and search the full space", pricing, True
    if question.job.optimizer in ("adamw", "lamb"):
        yield "--optimizer adamw-8bit", asking(optimizer="adamw-8bit"), False
    if question.job.precision in ("bf16", "fp16", "fp8"):
        yield "--precision bf16-pure", asking(precision="bf16-pure"), False
        if question.job.optimizer in ("adamw", "lamb"):
            both = asking(precision="bf16-pure", optimizer="adamw-8bit")
            yield "--precision bf16-pure --optimizer adamw-8bit", both, False
    half = question.job.sequence_length // 2
    if half >= 512:
        yield f"--sequence-length {half}", asking(sequence_length=half), False


def _more_devices(pricing: Pricing, constraints: Constraints, best: Best) -> list[Remedy]:
    """The fewest devices that fit: doubled until they do, then down by whole nodes."""
    free = {n: v for n, v in constraints.allowed.items() if n not in ("dp", "tp", "pp", "cp")}
    relaxed = simple(Constraints(allowed=free, forbidden=constraints.forbidden))
    low = count = pricing.question.num_devices
    found = None
    while found is None and count < MOST_DEVICES:
        low, count = count, 2 * count
        found = best(with_devices(pricing, count), relaxed, False)
    if found is None:
        return []
    node = pricing.question.cluster.devices_per_node
    step = max(node if low >= node else 1, (count - low) // 8)
    for fewer in range(low + step, count, step):
        other = best(with_devices(pricing, fewer), relaxed, False)
        if other is not None:
            count, found = fewer, other
            break
    return [Remedy(change=f"--gpus {count}", num_devices=count, candidate=found)]


def _other_batches(pricing: Pricing, constraints: Constraints, best: Best) -> list[Remedy]:
    """The two global batches nearest to the asked one that all devices can share."""
    question: Question = pricing.question
    result = []
    for batch in nearest_batches(question.job.global_batch, question.num_devices):
        job = replace(question.job, global_batch=batch)
        other = replace(pricing, question=replace(question, job=job))
        candidate = best(other, constraints, False)
        if candidate is not None:
            change, devices = f"--global-batch {batch}", question.num_devices
            result.append(Remedy(change=change, num_devices=devices, candidate=candidate))
    return result
