"""All that pricing needs beside a shard: machine, constants and habits in one place."""

from dataclasses import dataclass

from planner.calibration import StepConstants
from planner.cluster import Cluster
from planner.cost.comm import CommunicationConstants
from planner.cost.compute import KernelConstants
from planner.framework import Framework
from planner.ops import Implementation


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """All that pricing a block needs beside the shard."""

    cluster: Cluster
    kernels: KernelConstants
    communication: CommunicationConstants
    step: StepConstants
    framework: Framework
    implementation: Implementation
    dtype: str
    """Of matrix products; attention and the head stay at 16 bits under 8-bit recipes."""
    elementwise_traffic: float = 1.0
    """Of the framework's habit, and of the job's numbers."""
    frozen: bool = False
    """Only small adapters train: weights get no gradient, replicas exchange next to nothing."""

    @property
    def host_rate(self) -> float:
        """Speed of the hosts that come with such devices, over that of current ones."""
        return self.step.host_rates.get(self.kernels.generation, 1.0)

    def device_rate(self, dtype: str) -> float:
        """Rate of matrix kernels inside a step over that in benchmarks.

        Benchmarks of 8-bit products count a cast that training fuses, so these have their own.
        """
        rates, generation = self.step.device_rates, self.kernels.generation
        usual = rates.get(generation, 1.0)
        narrow = dtype in ("fp8", "fp4")
        fitted = rates.get(f"{generation} {dtype}", usual) if narrow else usual
        return fitted * self.cluster.compute_rate

    @property
    def wide_dtype(self) -> str:
        """Of what an 8-bit recipe leaves in 16 bits."""
        return "bf16" if self.dtype in ("fp8", "fp4") else self.dtype
