"""AdamW and SGD over the pieces of the parameters that this rank updates.

Under mixed precision the optimizer holds float32 masters of those pieces and writes them back
to the bf16 parameters after each step.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

from planner.job import Job

LEARNING_RATE = 1e-3
MOMENTUM = 0.9
WEIGHT_DECAY = 0.1
OPTIMIZERS = ("adamw", "sgd-momentum", "sgd")


class MasterOptimizer:
    """Updates ``pieces`` (compute precision) through float32 masters where they differ."""

    def __init__(self, job: Job, pieces: Sequence[Tensor]) -> None:
        self.pieces = [piece.detach() for piece in pieces]
        self.masters = [
            piece if piece.dtype == torch.float32 else piece.float() for piece in self.pieces
        ]
        self.optimizer = make_optimizer(job, self.masters)

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        """One update; ``gradients`` are float32, shaped as the pieces."""
        for master, gradient in zip(self.masters, gradients, strict=True):
            master.grad = gradient
        self.optimizer.step()
        for piece, master in zip(self.pieces, self.masters, strict=True):
            master.grad = None
            if piece is not master:
                piece.copy_(master)

    def state_tensors(self) -> list[Tensor]:
        """Masters (where they are not the parameters themselves) and moments."""
        masters = [m for m, p in zip(self.masters, self.pieces, strict=True) if m is not p]
        moments = [
            value
            for state in self.optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor)
        ]
        return masters + moments


def make_optimizer(job: Job, tensors: Sequence[Tensor]) -> Optimizer:
    """The job's optimizer over plain float32 tensors, in fused kernels."""
    groups = [{"params": list(tensors)}]
    if job.optimizer == "adamw":
        return AdamW(groups, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)
    momentum = MOMENTUM if job.optimizer == "sgd-momentum" else 0.0
    return SGD(groups, lr=LEARNING_RATE, momentum=momentum, fused=True)
