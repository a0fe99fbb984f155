"""Peak bytes of a few training steps, by category; on real tensors or on fake ones."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from executor.data_parallel import FullySharded, Replicas, local
from executor.memory import ACTIVATION, TEMPORARY, MemoryTracker
from executor.trainer import Trainer

STEPS = 2
"""The first step makes the optimizer's moments and the receive buffers."""


def count_steps(
    trainer: Trainer, tracker: MemoryTracker, batches: Iterable[tuple[Tensor, Tensor]]
) -> tuple[dict[str, Counter[str]], list[Tensor | None]]:
    """Peak of both phases of the last step, by category; and the losses of all steps."""
    handles = _watch(trainer, tracker)
    moments: dict[str, Counter[str]] = {}
    losses = []
    for inputs, targets in batches:
        tracker.label((inputs, targets), "inputs")
        _label_states(trainer, tracker)
        tracker.reset_peak()
        losses.append(trainer.accumulate(inputs, targets))
        trainer.finish_backward()
        moments["forward and backward"] = tracker.peak
        _label_gradients(trainer, tracker)
        for source in (ACTIVATION, TEMPORARY):  # receive buffers, tables of rotary positions
            tracker.settle("buffers", source=source)
        tracker.reset_peak()
        trainer.data_parallel.step()
        _label_states(trainer, tracker)
        moments["optimizer"] = tracker.peak
    for handle in handles:
        handle.remove()
    return moments, losses


def worst(moments: dict[str, Counter[str]]) -> Counter[str]:
    """The phase that needs most."""
    return max(moments.values(), key=lambda peak: sum(peak.values()))


def _watch(trainer: Trainer, tracker: MemoryTracker) -> list[Any]:
    """What outlives the forward of a layer is an activation."""
    handles = []
    for chain in trainer.chains.values():
        handles.append(
            chain.register_forward_pre_hook(lambda *_: _label_gradients(trainer, tracker))
        )
        parts = (chain.embedding, *chain.layers.values(), chain.head)
        handles += [
            part.register_forward_hook(lambda *_: tracker.settle(ACTIVATION))
            for part in parts
            if part is not None
        ]
    return handles


def _label_states(trainer: Trainer, tracker: MemoryTracker) -> None:
    """Parameters, and what the optimizer holds beside them."""
    tracker.label(_parameters(trainer), "parameters")
    data_parallel = trainer.data_parallel
    if isinstance(data_parallel, Replicas):
        tracker.label([bucket.flat for bucket in data_parallel.buckets], "parameters")
        tracker.label([bucket.sums for bucket in data_parallel.buckets], "gradients")
        for bucket in data_parallel.buckets:
            tracker.label(bucket.optimizer.state_tensors(), "optimizer")
    elif isinstance(data_parallel, FullySharded) and data_parallel.optimizer is not None:
        tracker.label(data_parallel.optimizer.state_tensors(), "optimizer")


def _label_gradients(trainer: Trainer, tracker: MemoryTracker) -> None:
    gradients = [p.grad for p in _parameters(trainer) if p.grad is not None]
    tracker.label([local(gradient) for gradient in gradients], "gradients")


def _parameters(trainer: Trainer) -> list[nn.Parameter]:
    return [p for chain in trainer.chains.values() for p in chain.parameters()]
