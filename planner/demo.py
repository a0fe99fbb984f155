"""``planner demo``: probe, calibrate, plan, run and compare, on any machine with two cores."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from planner.api import Recommendation, estimate, recommend
from planner.child import run_executor
from planner.layout import format_layout
from planner.local import calibration_name
from planner.machine import read_and_calibrate
from planner.measurement import Measurement, read_measurement, write_measurement
from planner.plan import Plan, Prediction, write_plan

MODEL = "tiny-llama"
SEQUENCE_LENGTH = 128
GLOBAL_BATCH = 8
WORLD_SIZES = (2, 4)
EXECUTED = 3
STEPS, WARMUP = 5, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One plan of the demo, promised and run."""

    plan: Plan
    measurement: Measurement

    @property
    def prediction(self) -> Prediction:
        """What was promised; every plan of the demo has one."""
        return _promise(self.plan)

    @property
    def step_error(self) -> float:
        """Predicted over measured step, less one."""
        return self.prediction.step_seconds / self.measurement.step_seconds - 1

    @property
    def predicted_speedup(self) -> float:
        """Over one rank of the same machine."""
        return self.prediction.one_device_seconds / self.prediction.step_seconds

    @property
    def name(self) -> str:
        """Ranks and layout, without what follows from them."""
        layout = replace(self.plan.layout, stage_layers=(), fused_loss=None)
        return f"{layout.world_size} ranks: {format_layout(layout)}"


def run_demo(folder: Path) -> int:
    """Run the whole loop in a folder; the exit code of the first command that failed, or 0."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write {folder}: {error.strerror}") from None
    probe = folder / "probe.json"
    sizes = ",".join(str(size) for size in (1, *WORLD_SIZES))
    if code := run_executor("probe", "--world-sizes", sizes, "--output", str(probe)):
        return code
    _say("fitting a calibration to the probe ...")
    read_and_calibrate(probe)
    plans = best_plans()
    trials: list[Trial] = []
    for number, plan in enumerate(plans, start=1):
        _say(f"running plan {number} of {len(plans)}: {format_layout(plan.layout)} ...")
        if code := _run(plan, folder, number):
            return code
        measured = _with_baseline(folder, number)
        trials.append(Trial(plan=plan, measurement=measured))
    _show(trials, folder / "demo.png")
    return 0


def _run(plan: Plan, folder: Path, number: int) -> int:
    """Write and execute one plan; the first also measures the one-rank baseline."""
    path = folder / f"plan-{number}.json"
    write_plan(path, plan)
    words = ["--output", str(_output(folder, number)), "--steps", str(STEPS)]
    words += ["--warmup", str(WARMUP), *(["--baseline"] if number == 1 else [])]
    return run_executor("launch", str(path), *words)


def _output(folder: Path, number: int) -> Path:
    return folder / f"measurement-{number}.json"


def _with_baseline(folder: Path, number: int) -> Measurement:
    """The measurement, with the baseline that the first run measured for all."""
    measured = read_measurement(_output(folder, number))
    if number == 1:
        return measured
    alone = read_measurement(_output(folder, 1)).baseline_seconds
    measured = replace(measured, baseline_seconds=alone)
    write_measurement(_output(folder, number), measured)
    return measured


def best_plans() -> list[Plan]:
    """The fastest predicted layouts over all world sizes, with the one-rank job as baseline."""
    alone = estimate(
        MODEL, gpus=1, cluster="here", layout=f"microbatch={GLOBAL_BATCH}",
        global_batch=GLOBAL_BATCH, sequence_length=SEQUENCE_LENGTH,
        calibration=calibration_name(1),
    )  # fmt: skip
    plans: list[Plan] = []
    for size in WORLD_SIZES:
        answer = _ask(size)
        plans += [answer.plan(rank=rank) for rank in range(len(answer.result.ranked))]
    plans = [_against(plan, alone.time.step_seconds) for plan in plans]
    return sorted(plans, key=lambda plan: _promise(plan).step_seconds)[:EXECUTED]


def _against(plan: Plan, one_rank_seconds: float) -> Plan:
    """The plan, its speedup promised over the one-rank job as this machine runs it alone."""
    return replace(plan, prediction=replace(_promise(plan), one_device_seconds=one_rank_seconds))


def _promise(plan: Plan) -> Prediction:
    assert plan.prediction is not None, "every plan of the demo comes from a recommendation"
    return plan.prediction


def _ask(size: int) -> Recommendation:
    return recommend(
        MODEL, gpus=size, cluster="here", global_batch=GLOBAL_BATCH,
        sequence_length=SEQUENCE_LENGTH, calibration=calibration_name(size), executable=True,
        top=EXECUTED,
    )  # fmt: skip


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _show(trials: Sequence[Trial], path: Path) -> None:
    from rich.console import Console

    from planner.report.demo import demo_figure, demo_table
    from planner.report.plots import save

    Console(width=None if sys.stdout.isatty() else 120, highlight=False).print(demo_table(trials))
    save(demo_figure(trials), path)
    _say(f"plans, measurements and the plot are in {path.parent}")
