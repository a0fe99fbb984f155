"""One layout, looked at from every side: does it run, does it fit, how fast, of what made."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol

import numpy as np

from planner.calibration import Calibration
from planner.cost.memory import StageMemory, stage_memory, usable_bytes
from planner.cost.step import Estimate, estimate
from planner.job import Job
from planner.layout import Layout
from planner.layout_table import tabulate
from planner.plan import Plan, Prediction, Rival, StagePrediction
from planner.rules import Question, explain_rules
from planner.rules.pipeline import with_split
from planner.setting import Setting

SECONDS_PER_DAY = 86400


class Priced(Protocol):
    """A layout with its predicted step, such as a search's candidate."""

    @property
    def layout(self) -> Layout: ...  # noqa: D102

    @property
    def step_seconds(self) -> float: ...  # noqa: D102


@dataclass(frozen=True, slots=True, kw_only=True)
class Appraisal:
    """Time and memory of one layout in one setting."""

    setting: Setting
    layout: Layout
    """Its stage split made explicit."""
    time: Estimate
    stages: tuple[StageMemory, ...]
    usable_bytes: float
    """What the allocator can hold: the device less its context and communicators."""

    @property
    def heaviest(self) -> StageMemory:
        """The pipeline rank that needs most."""
        return max(self.stages, key=lambda stage: stage.allocated)

    @property
    def peak_bytes(self) -> int:
        """Allocated, heaviest rank."""
        return self.heaviest.allocated

    @property
    def fits(self) -> bool:
        """Whether the allocator's reserve of the heaviest rank is inside the usable bytes."""
        return self.heaviest.reserved <= self.usable_bytes

    @property
    def tokens_per_second(self) -> float:
        """Of the whole job; images for a conv net."""
        return self.setting.job.tokens_per_step / self.time.step_seconds

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation: 3 x forward, nothing recomputed, over the dense peak.

        Causal attention counts half of its pairs (Chowdhery et al. 2022, appendix B, counts
        all of them).
        """
        return (
            self.tokens_per_second
            * training_flops_per_token(self.setting)
            / (peak_flops_per_second(self.setting) * self.layout.world_size)
        )

    def days_for(self, tokens: float) -> float:
        """Days of training at this rate."""
        return tokens / self.tokens_per_second / SECONDS_PER_DAY


def training_flops_per_token(setting: Setting) -> float:
    """Forward and backward, 3 x forward, of one token of the job's sequence length."""
    length = setting.job.sequence_length
    return 3.0 * setting.model.forward_flops_per_sequence(length) / length


def peak_flops_per_second(setting: Setting) -> float:
    """Dense peak of one device in the job's matrix format."""
    return setting.cluster.device.peak_flops_per_second(setting.job.numbers.compute_dtype)


def question_of(setting: Setting) -> Question:
    """The setting as the rules read it."""
    return Question(
        model=setting.model, job=setting.job, cluster=setting.cluster,
        framework=setting.framework, num_devices=setting.num_devices,
    )  # fmt: skip


def appraise(setting: Setting, layout: Layout, calibration: Calibration) -> Appraisal:
    """Predict one layout by the exact timeline and the memory model.

    Raises:
        ValueError: If the layout breaks a rule; the line says which, and what would be legal.
    """
    model, job, framework = setting.model, setting.job, setting.framework
    broken = explain_rules(
        layout, model, job, setting.cluster, framework, num_devices=setting.num_devices
    )
    if broken:
        raise ValueError(broken[0].reason)
    layout = with_split(layout, question_of(setting))
    table = tabulate([layout], fused_loss_habit=framework.fused_loss)
    device = setting.cluster.device
    return Appraisal(
        setting=setting,
        layout=layout,
        time=estimate(model, job, setting.cluster, framework, layout, calibration),
        stages=stage_memory(model, job, framework, layout, device=device),
        usable_bytes=float(np.ravel(usable_bytes(device.memory_bytes, framework, table))[0]),
    )


def complete_layout(settings: dict[str, object], setting: Setting) -> Layout:
    """Fill a layout that was given in part: ``dp`` from the devices, batches from the job.

    Raises:
        ValueError: If the degrees do not divide the devices, or the batch cannot be split.
    """
    unknown = set(settings) - {field.name for field in fields(Layout)}
    if unknown:
        raise ValueError(f"layout has no {', '.join(sorted(unknown))}")
    layout = Layout(**settings)  # type: ignore[arg-type]
    if "dp" not in settings:
        inner = layout.tp * layout.pp * layout.cp
        if setting.num_devices % inner:
            raise ValueError(
                f"tp {layout.tp} x pp {layout.pp} x cp {layout.cp} = {inner} does not divide "
                f"the {setting.num_devices} devices of --gpus"
            )
        layout = replace(layout, dp=setting.num_devices // inner)
    if "microbatches" not in settings:
        layout = replace(layout, microbatches=_microbatches(layout, setting.job))
    return layout


def _microbatches(layout: Layout, job: Job) -> int:
    together = layout.dp * layout.microbatch
    if job.global_batch % together:
        below = job.global_batch // together * together
        nearest = [str(n) for n in (below, below + together) if n]
        raise ValueError(
            f"global batch {job.global_batch} cannot be split over dp {layout.dp} x microbatch "
            f"{layout.microbatch} = {together}\n"
            f"hint: --global-batch {' or '.join(nearest)} can"
        )
    return job.global_batch // together


def plan_of(
    appraisal: Appraisal,
    *,
    calibration: str = "default",
    one_device_seconds: float = 0.0,
    baseline_devices: int = 1,
    rivals: Sequence[Priced] = (),
    inputs: dict[str, str] | None = None,
) -> Plan:
    """The plan file's content for an appraised layout, with the runners-up for a trial."""
    setting, time = appraisal.setting, appraisal.time
    stages = tuple(
        StagePrediction(
            rank_in_pipeline=stage.rank, layers=stage.layers,
            memory=stage.categories, peak_bytes=stage.allocated,
        )
        for stage in appraisal.stages
    )  # fmt: skip
    return Plan(
        model=setting.model,
        job=setting.job,
        layout=appraisal.layout,
        cluster=setting.cluster.name,
        devices_per_node=setting.cluster.devices_per_node,
        calibration=calibration,
        prediction=Prediction(
            step_seconds=time.step_seconds,
            low_seconds=time.low_seconds,
            high_seconds=time.high_seconds,
            parts=time.parts,
            peak_bytes=appraisal.peak_bytes,
            stages=stages,
            one_device_seconds=one_device_seconds,
            baseline_devices=baseline_devices,
        ),
        rivals=tuple(
            Rival(layout=rival.layout, step_seconds=rival.step_seconds)
            for rival in rivals
            if rival.layout != appraisal.layout
        ),
        inputs=inputs or {},
    )
