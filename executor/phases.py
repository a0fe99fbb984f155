"""Where one rank's time goes in a step: forward, backward, optimizer, waiting.

``communication`` is what compute waits for inside a phase; sends between stages are waited for
outside the phases and count as ``idle``, with the pipeline's bubble.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from executor.trainer import Trainer

PARTS = ("forward", "backward", "communication", "optimizer", "idle")


class PhaseClock:
    """Adds up seconds by part; on a GPU every phase is waited for, so steps run slower."""

    def __init__(self, trainer: Trainer, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = defaultdict(float)
        self._phase: str | None = None
        self._watch(trainer)

    def _watch(self, trainer: Trainer) -> None:
        owners: list[tuple[Any, str, str]] = [
            (trainer, "forward", "forward"),
            (trainer, "backward", "backward"),
            (trainer, "finish_backward", "backward"),
            (trainer.data_parallel, "step", "optimizer"),
        ]
        if trainer.pipeline is not None:
            for stage in trainer.pipeline.stages:
                owners.append((stage, "forward_one_chunk", "forward"))
                owners.append((stage, "backward_one_chunk", "backward"))
                owners.append((stage, "backward_weight_one_chunk", "backward"))
        for owner, method, phase in owners:
            setattr(owner, method, self._timed(getattr(owner, method), phase))

    def _timed(self, call: Callable[..., Any], phase: str) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.phase(phase):
                return call(*args, **kwargs)

        return timed

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time inside, less what is waited for there."""
        started, waited = self._now(), self.seconds["communication"]
        self._phase = name
        try:
            yield
        finally:
            self._phase = None
            waited = self.seconds["communication"] - waited
            self.seconds[name] += self._now() - started - waited

    @contextmanager
    def waits(self) -> Iterator[None]:
        """Time every wait for a collective, PyTorch's functional ones included."""
        functional: Any = torch.ops._c10d_functional
        plain_wait, tensor_wait = dist.Work.wait, functional.wait_tensor
        dist.Work.wait = self._waiting(plain_wait)  # type: ignore[method-assign]
        functional.wait_tensor = self._waiting(tensor_wait)
        try:
            yield
        finally:
            dist.Work.wait = plain_wait  # type: ignore[method-assign]
            functional.wait_tensor = tensor_wait

    def _waiting(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        def waiting(*args: Any, **kwargs: Any) -> Any:
            if self._phase is None:
                return wait(*args, **kwargs)
            started = time.perf_counter()
            try:
                return wait(*args, **kwargs)
            finally:
                self.seconds["communication"] += time.perf_counter() - started

        return waiting

    def take(self, step_seconds: float) -> dict[str, float]:
        """Seconds by part since the last call; ``idle`` is what no part explains."""
        known = {part: self.seconds[part] for part in PARTS if part != "idle"}
        self.seconds.clear()
        return known | {"idle": max(step_seconds - sum(known.values()), 0.0)}

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()
