"""The job: how much is trained per step, in which numbers, by which framework."""

from dataclasses import dataclass
from typing import ClassVar, Literal

PrecisionName = Literal["fp32", "tf32", "bf16", "fp16", "bf16-pure", "fp8", "fp4"]
OptimizerName = Literal["adamw", "adamw-8bit", "sgd-momentum", "sgd", "lamb"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """What one number weighs in each of its roles."""

    compute_dtype: str
    parameter_bytes: int
    activation_bytes: int
    keeps_master: bool
    """A float32 copy of the parameters is kept beside the working copy."""


PRECISIONS: dict[str, Precision] = {
    "fp32": Precision(
        compute_dtype="fp32", parameter_bytes=4, activation_bytes=4, keeps_master=False
    ),
    "tf32": Precision(
        compute_dtype="tf32", parameter_bytes=4, activation_bytes=4, keeps_master=False
    ),
    "bf16": Precision(
        compute_dtype="bf16", parameter_bytes=2, activation_bytes=2, keeps_master=True
    ),
    "fp16": Precision(
        compute_dtype="fp16", parameter_bytes=2, activation_bytes=2, keeps_master=True
    ),
    "bf16-pure": Precision(
        compute_dtype="bf16", parameter_bytes=2, activation_bytes=2, keeps_master=False
    ),
    "fp8": Precision(
        compute_dtype="fp8", parameter_bytes=2, activation_bytes=2, keeps_master=True
    ),
    "fp4": Precision(
        compute_dtype="fp4", parameter_bytes=2, activation_bytes=2, keeps_master=True
    ),
}

OPTIMIZER_STATE_BYTES: dict[str, int] = {
    "adamw": 8,  # two float32 moments
    "lamb": 8,
    "adamw-8bit": 2,  # Dettmers et al. 2022, block-wise 8-bit moments
    "sgd-momentum": 4,
    "sgd": 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One optimizer step. For images a sample is a sequence of length 1."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    global_batch: int
    """Sequences per optimizer step, over all replicas."""
    sequence_length: int
    precision: PrecisionName = "bf16"
    optimizer: OptimizerName = "adamw"
    framework: str = "planner"
    """Name of the framework profile: its habits in memory and overlap."""
    lora_rank: int = 0
    """0 trains everything; otherwise the base is frozen and adapters of this rank train."""

    def __post_init__(self) -> None:
        for name in ("global_batch", "sequence_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one optimizer step trains on."""
        return self.global_batch * self.sequence_length

    @property
    def numbers(self) -> Precision:
        """What a number weighs under this job's precision."""
        return PRECISIONS[self.precision]
