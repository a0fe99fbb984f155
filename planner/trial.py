"""Settle near-ties by running them: ``planner execute plan.json --top 3``."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from planner.layout import Layout
from planner.measurement import Measurement, read_measurement
from planner.plan import Plan, write_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One layout of the trial."""

    layout: Layout
    predicted_seconds: float
    measurement: Measurement
    path: Path
    """Of its plan file."""


def contenders(plan: Plan, top: int) -> list[Plan]:
    """The plan and its next ``top - 1`` rivals, as plans of their own.

    Raises:
        ValueError: If ``top`` is below 1, or the plan names fewer rivals.
    """
    if not 1 <= top <= len(plan.rivals) + 1:
        raise ValueError(
            f"--top {top}: the plan holds {len(plan.rivals)} runners-up, so 1 to "
            f"{len(plan.rivals) + 1} layouts can be tried\n"
            "hint: planner recommend --top N writes more of them"
        )
    return [
        plan,
        *(
            replace(plan, layout=rival.layout, prediction=None, rivals=())
            for rival in plan.rivals[: top - 1]
        ),
    ]


def run_trial(
    plan: Plan, *, top: int, output: Path, run: Callable[[Path, Path], int]
) -> tuple[list[Tried], int]:
    """Run the contenders one after another; those that ran, fastest first, and an exit code.

    Plans and measurements stand beside ``output``, numbered in the predicted order. A rival
    that cannot run is passed over; the plan itself must.

    Args:
        plan: With its rivals.
        top: How many layouts to run.
        output: Where the plan's own measurement goes.
        run: Executes a plan file into a measurement file and returns the exit code.
    """
    predicted = [plan.prediction.step_seconds if plan.prediction else 0.0]
    predicted += [rival.step_seconds for rival in plan.rivals]
    tried: list[Tried] = []
    for number, contender in enumerate(contenders(plan, top), start=1):
        path = output.with_name(f"{output.stem}-{number}.plan.json")
        measured = output.with_name(f"{output.stem}-{number}.json")
        write_plan(path, contender)
        if code := run(path, measured):
            if number == 1:
                return [], code
            continue
        tried.append(
            Tried(
                layout=contender.layout, predicted_seconds=predicted[number - 1],
                measurement=read_measurement(measured), path=path,
            )
        )  # fmt: skip
    return sorted(tried, key=lambda one: one.measurement.step_seconds), 0
