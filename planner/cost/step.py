"""The time of one optimizer step, for one layout or a million, with where it goes.

    step = microbatches * slowest stage + bubble + what data parallelism cannot hide
           + optimizer + host

Every part is an array with one entry per layout; the parts sum to the whole.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from planner.calibration import Calibration
from planner.cluster import Cluster
from planner.cost.comm import default_communication, send_recv_seconds
from planner.cost.compute import default_constants
from planner.cost.data_parallel import replicas
from planner.cost.pipeline import bubble_seconds
from planner.cost.prices import Prices
from planner.cost.stages import StageCosts, distinct_rows, stage_costs
from planner.cost.step_end import (
    data_parallel_seconds,
    host_seconds,
    optimizer_seconds,
    timeout_seconds,
)
from planner.framework import Framework
from planner.job import Job
from planner.layout import Layout
from planner.layout_table import LayoutTable, tabulate
from planner.model import Model

if TYPE_CHECKING:
    from planner.schedules.timeline import Timeline

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTable:
    """Predicted steps of many layouts."""

    step_seconds: Floats
    parts: dict[str, Floats]
    """Seconds by part, which sum to ``step_seconds``."""
    low_seconds: Floats
    high_seconds: Floats
    """Ends of the 80 % interval."""
    send_seconds: Floats
    """Of one microbatch's activations between neighbouring stages."""
    stages: StageCosts

    def __len__(self) -> int:
        return len(self.step_seconds)

    def stage_seconds(self, index: int) -> tuple[Floats, Floats, Floats]:
        """Forward, input and weight gradient of one microbatch on each (virtual) stage."""
        pair = int(self.stages.inverse[index])
        split, place = int(self.stages.split[pair]), int(self.stages.place[pair])
        return self.stages.passes(split, place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The predicted step of one layout."""

    step_seconds: float
    low_seconds: float
    high_seconds: float
    parts: dict[str, float]
    stage_forward_seconds: tuple[float, ...]
    stage_input_gradient_seconds: tuple[float, ...]
    stage_weight_gradient_seconds: tuple[float, ...]
    send_seconds: float


def prices_of(
    model: Model, job: Job, cluster: Cluster, framework: Framework, calibration: Calibration
) -> Prices:
    """Constants and habits in one place."""
    communication = calibration.communication or default_communication()
    if cluster.fabric_degradation_exponent >= 0:
        communication = replace(
            communication, degradation_exponent=cluster.fabric_degradation_exponent
        )
    return Prices(
        cluster=cluster,
        kernels=calibration.kernels or default_constants(cluster.device),
        communication=communication,
        step=calibration.step,
        framework=framework,
        implementation=framework.implementation(job, fused_loss=False),
        dtype=_dtype_of(job, cluster),
        elementwise_traffic=_elementwise_traffic(model, job, framework),
        frozen=job.lora_rank > 0,
    )


def _elementwise_traffic(model: Model, job: Job, framework: Framework) -> float:
    """Convolutional nets keep 16 bits in batch norms, transformers under autocast do not."""
    narrow = job.numbers.activation_bytes == 2 and model.family != "convolution"
    return framework.elementwise_traffic * (framework.autocast_traffic if narrow else 1.0)


def _dtype_of(job: Job, cluster: Cluster) -> str:
    """What matrix products run in; a device without the format takes the nearest it has."""
    dtype = job.numbers.compute_dtype
    rates = cluster.device.flops_per_second
    if dtype == "bf16" and "bf16" not in rates and "fp16" in rates:
        return "fp16"
    if dtype == "fp4" and "fp4" not in rates:
        dtype = "fp8"
    if dtype == "fp8" and "fp8" not in rates:
        return "bf16" if "bf16" in rates else "fp16"
    if dtype == "tf32" and "tf32" not in rates:
        return "fp32"
    return dtype


def step(  # noqa: PLR0917 - the question, the layouts, the constants: all of them nouns
    model: Model,
    job: Job,
    cluster: Cluster,
    framework: Framework,
    table: LayoutTable,
    calibration: Calibration,
) -> StepTable:
    """Predict the step of every layout of a table.

    Args:
        model: What is trained.
        job: How much per step, in which numbers.
        cluster: Where.
        framework: Habits.
        table: The layouts.
        calibration: Fitted constants.
    """
    prices = prices_of(model, job, cluster, framework, calibration)
    stages = stage_costs(model, job, table, prices)
    pair = stages.inverse
    exchange = replicas(
        model, job, table, prices, pair=pair,
        dense=stages.dense_parameters, expert=stages.expert_parameters,
        layers=stages.slowest_layers,
    )  # fmt: skip
    parts = {name: table.microbatches * value[pair] for name, value in stages.parts.items()}
    send = _send_seconds(model, job, table, prices)
    exposed = send * ~hides_sends(table, prices) + prices.step.pipeline_sync_seconds * (
        table.pp > 1
    )
    parts["pp"] = 2.0 * exposed * table.microbatches * table.vpp
    parts["bubble"] = bubble_seconds(table, stages, exposed_send=exposed, send=send)
    parts |= data_parallel_seconds(table, stages, exchange, prices)
    parts["optimizer"] = optimizer_seconds(job, table, stages, prices) + exchange.norm
    parts["host"] = parts["host"] + host_seconds(table, prices)
    busy = sum(parts[name] for name in ("forward", "backward", "recompute"))
    world = table.dp * table.tp * table.pp * table.cp
    parts["straggler"] = prices.step.straggler_growth * np.sqrt(2.0 * np.log(world)) * busy
    parts["straggler"] += timeout_seconds(table, cluster)
    total = np.sum([*parts.values()], axis=0)
    return StepTable(
        step_seconds=total,
        parts=parts,
        low_seconds=total * np.exp(calibration.spread.low),
        high_seconds=total * np.exp(calibration.spread.high),
        send_seconds=send,
        stages=stages,
    )


def estimate(  # noqa: PLR0917 - as ``step``
    model: Model,
    job: Job,
    cluster: Cluster,
    framework: Framework,
    layout: Layout,
    calibration: Calibration,
) -> Estimate:
    """Predict one layout, its pipeline played action by action.

    The timeline replaces the closed form of the bubble; everything else is the same.

    Raises:
        ValueError: If the layout's schedule cannot run so.
    """
    from planner.schedules.program import program_of
    from planner.schedules.timeline import play

    table = tabulate([layout], fused_loss_habit=framework.fused_loss)
    found = step(model, job, cluster, framework, table, calibration)
    forward, input_gradient, weight_gradient = found.stage_seconds(0)
    parts = {name: float(value[0]) for name, value in found.parts.items()}
    total = float(found.step_seconds[0])
    if layout.pp > 1:
        program = program_of(
            layout.schedule, pp=layout.pp, vpp=layout.vpp, microbatches=layout.microbatches
        )
        prices = prices_of(model, job, cluster, framework, calibration)
        timeline = play(
            program,
            forward_seconds=forward,
            input_gradient_seconds=input_gradient,
            weight_gradient_seconds=weight_gradient,
            send_seconds=float(found.send_seconds[0]) + calibration.step.pipeline_sync_seconds,
            overlap=bool(hides_sends(table, prices)[0]),
        )
        working = float(working_seconds(found, table)[0])
        bubble = max(timeline.makespan_seconds - working, 0.0)
        total += bubble - parts["bubble"]
        parts["bubble"] = bubble
    ratio_low, ratio_high = np.exp(calibration.spread.low), np.exp(calibration.spread.high)
    return Estimate(
        step_seconds=total, low_seconds=total * float(ratio_low),
        high_seconds=total * float(ratio_high), parts=parts,
        stage_forward_seconds=tuple(forward.tolist()),
        stage_input_gradient_seconds=tuple(input_gradient.tolist()),
        stage_weight_gradient_seconds=tuple(weight_gradient.tolist()),
        send_seconds=float(found.send_seconds[0]),
    )  # fmt: skip


def working_seconds(found: StepTable, table: LayoutTable) -> Floats:
    """What the slowest rank does in all its microbatches: a pipeline without bubble."""
    names = ("forward", "backward", "recompute", "tp", "cp", "ep", "pp")
    host = found.stages.parts["host"][found.stages.inverse] * table.microbatches
    return np.sum([found.parts[name] for name in names], axis=0) + host


def hides_sends(table: LayoutTable, prices: Prices) -> NDArray[np.bool_]:
    """Whether sends between stages go on behind compute."""
    return (table.vpp > 1) & prices.framework.overlaps_pipeline


def _send_seconds(model: Model, job: Job, table: LayoutTable, prices: Prices) -> Floats:
    """One microbatch's residual stream to the next stage, cut over the tensor-parallel ranks.

    Reference: Narayanan et al. 2021, section 4.1 (scatter/gather optimisation).
    """
    tokens = table.microbatch * job.sequence_length / table.cp
    message = tokens * model.hidden * job.numbers.activation_bytes / table.tp
    columns = {"message": message, "stride": table.stride("pp"), "pp": table.pp}
    first, inverse = distinct_rows(columns)
    seconds = send_recv_seconds(
        message[first], stride=columns["stride"][first], degree=table.pp[first],
        cluster=prices.cluster, constants=prices.communication,
    )  # fmt: skip
    return seconds[inverse]


def play_estimate(layout: Layout, time: Estimate) -> "Timeline":
    """A layout's schedule, played with the stage times of its estimate."""
    from planner.schedules.program import program_of
    from planner.schedules.timeline import play

    program = program_of(
        layout.schedule, pp=layout.pp, vpp=layout.vpp, microbatches=layout.microbatches
    )
    return play(
        program,
        forward_seconds=time.stage_forward_seconds,
        input_gradient_seconds=time.stage_input_gradient_seconds,
        weight_gradient_seconds=time.stage_weight_gradient_seconds,
        send_seconds=time.send_seconds,
    )
