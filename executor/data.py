"""What is trained on: synthetic tokens, a text file byte by byte, or synthetic images.

The global batch of a step depends on the seed and the step alone; every rank makes it and
takes its own part, so every layout trains on the same sequences.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from planner.job import Job
from planner.model import ImageHead, Model, Stem

MASKED_SHARE = 0.15
"""Of an encoder's input tokens (Devlin et al. 2019)."""


@dataclass(frozen=True, kw_only=True)
class Batches:
    """Global batches by step."""

    model: Model
    job: Job
    text: Tensor | None = None
    """Byte values of ``--data``."""
    seed: int = 0

    def whole(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of one step, over all replicas."""
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + step)
        if isinstance(self.model.embedding, Stem):
            return self._images(self.model.embedding, generator)
        tokens = self._tokens(generator)
        if self.model.family == "encoder":
            clean = tokens[:, :-1]
            masked = torch.rand(clean.shape, generator=generator) < MASKED_SHARE
            return clean.masked_fill(masked, self.model.vocabulary - 1), clean.contiguous()
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def share(
        self, step: int, *, replica: int, replicas: int, cp_rank: int = 0, cp: int = 1
    ) -> tuple[Tensor, Tensor]:
        """One replica's rows, and of them one context-parallel rank's columns."""
        inputs, targets = (part.chunk(replicas)[replica] for part in self.whole(step))
        if cp > 1:
            inputs, targets = (part.chunk(cp, dim=1)[cp_rank] for part in (inputs, targets))
        return inputs.contiguous(), targets.contiguous()

    def _tokens(self, generator: torch.Generator) -> Tensor:
        rows, length = self.job.global_batch, self.job.sequence_length + 1
        if self.text is None:
            return torch.randint(self.model.vocabulary, (rows, length), generator=generator)
        starts = torch.randint(len(self.text) - length + 1, (rows, 1), generator=generator)
        return self.text[starts + torch.arange(length)]

    def _images(self, stem: Stem, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        assert isinstance(self.model.head, ImageHead)
        rows, side = self.job.global_batch, stem.image_size
        images = torch.randn((rows, 3, side, side), generator=generator)
        labels = torch.randint(self.model.head.num_classes, (rows,), generator=generator)
        return images, labels


def read_text(path: Path, model: Model, job: Job) -> Tensor:
    """The bytes of a file as token numbers.

    Raises:
        ValueError: If it cannot be read, is shorter than one sequence, or the vocabulary has
            no room for every byte value.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    if len(raw) <= job.sequence_length:
        raise ValueError(
            f"{path} has {len(raw)} bytes; one sequence needs {job.sequence_length + 1}"
        )
    if model.vocabulary < 256:
        raise ValueError(
            f"byte-level text needs a vocabulary of 256, the model has {model.vocabulary}"
        )
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).long()
