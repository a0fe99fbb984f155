"""The library's own entrance: what the commands do, as functions that return results."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from planner.appraisal import Appraisal, appraise, complete_layout, plan_of, question_of
from planner.calibration import Calibration, load_calibration
from planner.executable import executable_words
from planner.layout import Layout, parse_layout_settings
from planner.local import calibration_name, has_calibration
from planner.model import Model
from planner.plan import Plan
from planner.search import SearchResult, search
from planner.search.pricing import Pricing
from planner.search.teach import Lesson
from planner.search.teach import teach as walk_checklist
from planner.setting import Setting, resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The answer to a question: what was asked, what was found, the best looked at closely."""

    setting: Setting
    result: SearchResult
    best: Appraisal | None
    """None if nothing fits; ``result.remedies`` then says what would."""
    calibration: str

    def lesson(self) -> Lesson:
        """The rule of thumb, walked with this job's numbers, beside what was computed."""
        constants = load_calibration(self.calibration)
        pricing = Pricing(question=question_of(self.setting), calibration=constants)
        return walk_checklist(pricing, self.result)

    def plan(self, *, rank: int = 0, inputs: dict[str, str] | None = None) -> Plan:
        """The plan of the best layout, or of a runner-up, for the executor.

        Args:
            rank: 0 for the best, 1 for the first runner-up, and so on.
            inputs: The flags that asked, kept in the plan.

        Raises:
            ValueError: If nothing fits, or fewer layouts were ranked.
        """
        ranked = self.result.ranked
        if rank >= len(ranked):
            raise ValueError(f"only {len(ranked)} layouts were ranked, rank {rank} was asked for")
        chosen = self.best if rank == 0 else None
        if chosen is None:
            constants = load_calibration(self.calibration)
            chosen = appraise(self.setting, ranked[rank].layout, constants)
        reference = self.result.reference
        alone = reference.step_seconds * self.result.reference_devices if reference else 0.0
        return plan_of(
            chosen,
            rivals=ranked if rank == 0 else (),
            calibration=self.calibration,
            one_device_seconds=alone,
            baseline_devices=self.result.reference_devices,
            inputs=inputs,
        )


def calibration_of(setting: Setting, name: str) -> str:
    """The calibration that a setting means by ``default``: on this machine's CPU, its probe."""
    world = setting.num_devices
    if name == "default" and setting.cluster.name == "here" and has_calibration(world):
        return calibration_name(world)
    return name


def recommend(
    model: str | Model,
    *,
    gpus: int,
    cluster: str | None = None,
    global_batch: int | None = None,
    sequence_length: int | None = None,
    precision: str | None = None,
    optimizer: str | None = None,
    framework: str | None = None,
    calibration: str = "default",
    fixed: str = "",
    only: Iterable[str] = (),
    forbid: Iterable[str] = (),
    executable: bool = False,
    max_memory_bytes: int = 0,
    top: int = 6,
) -> Recommendation:
    """Find the best way to train a model on so many devices.

    Args:
        model: Preset name, or path to a Hugging Face ``config.json`` or its folder, or a model.
        gpus: Devices to plan for.
        cluster: Preset, TOML file, ``DEVICE:PERNODE`` or ``here``.
        global_batch: Sequences (images) per optimizer step.
        sequence_length: Tokens per sequence.
        precision: A name of ``planner.job.PRECISIONS``.
        optimizer: A name of ``planner.job.OPTIMIZER_STATE_BYTES``.
        framework: Name of a framework profile.
        calibration: Name of a calibration.
        fixed: Fields that are given, such as ``"tp=8,sp"``.
        only: Values that are allowed, such as ``["zero=1,3"]``.
        forbid: What is ruled out, such as ``["pp"]``.
        executable: Only what this project's own executor runs.
        max_memory_bytes: Of one device; 0 for all it has.
        top: Layouts to rank.

    Raises:
        ValueError: For a name that is not known or a number that cannot be.

    >>> answer = recommend("tiny-llama", gpus=2, global_batch=16)
    >>> answer.best.layout.world_size
    2
    """
    setting = resolve(
        model=model, num_devices=gpus, cluster=cluster, global_batch=global_batch,
        sequence_length=sequence_length, precision=precision, optimizer=optimizer,
        framework=framework,
    )  # fmt: skip
    if executable:
        fixed, forbid = executable_words(fixed, tuple(forbid))
    calibration = calibration_of(setting, calibration)
    constants = load_calibration(calibration)
    given: dict[str, Any] = {
        "num_devices": setting.num_devices, "fixed": fixed, "only": only, "forbid": forbid,
        "max_memory_bytes": max_memory_bytes, "top": top,
    }  # fmt: skip
    question = (setting.model, setting.job, setting.cluster, setting.framework, constants)
    result = search(*question, **given)
    if result.best is None:
        # What rarely helps (offload, wider shard groups) may be all that is left, and then
        # what fits only if the estimate is right to the byte (shown as tight).
        whole = setting.cluster.device.memory_bytes
        for more in ({"full": True}, {"max_memory_bytes": max_memory_bytes or whole}):
            wider = search(*question, **(given | more))
            if wider.best is not None:
                result = wider
                break
    best = appraise(setting, result.best.layout, constants) if result.best else None
    return Recommendation(setting=setting, result=result, best=best, calibration=calibration)


def estimate(
    model: str,
    *,
    gpus: int,
    layout: str | Layout = "",
    cluster: str | None = None,
    global_batch: int | None = None,
    sequence_length: int | None = None,
    precision: str | None = None,
    optimizer: str | None = None,
    framework: str | None = None,
    calibration: str | Calibration = "default",
) -> Appraisal:
    """Predict time and memory of one layout; what it leaves open is filled in.

    Arguments as in ``recommend``; ``layout`` such as ``"tp=4,pp=2,zero=1"``.

    Raises:
        ValueError: For a layout that cannot run; the line says which rule, and what is legal.

    >>> estimate("llama-7b", gpus=8, layout="tp=8").peak_bytes > 0
    True
    """
    setting = resolve(
        model=model, num_devices=gpus, cluster=cluster, global_batch=global_batch,
        sequence_length=sequence_length, precision=precision, optimizer=optimizer,
        framework=framework,
    )  # fmt: skip
    constants = calibration
    if isinstance(constants, str):
        constants = load_calibration(calibration_of(setting, constants))
    if isinstance(layout, str):
        layout = complete_layout(parse_layout_settings(layout), setting)
    return appraise(setting, layout, constants)
