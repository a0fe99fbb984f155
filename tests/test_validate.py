"""Scoring a table of runs: figures, sweeps, intervals, and the report file."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planner.calibration import Calibration
from planner.predict_runs import predict_runs
from planner.runs.reader import parse_runs
from planner.validate import find_sweeps, score, validate, write_report
from tests.runs.test_reader import GOOD

FIGURES = {
    "scored", "mean_abs_error", "median_abs_error", "p90_abs_error", "bias", "spearman",
    "kendall_tau", "mean_regret", "max_regret", "interval_coverage", "memory", "verdicts",
}  # fmt: skip
DEGREES = [(1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (2, 2), (4, 2), (1, 4), (2, 4)]


def sweep() -> list[dict[str, str]]:
    """Nine layouts of one model on 16 devices."""
    return [
        {**GOOD, "id": f"r{i}", "tp": str(tp), "pp": str(pp), "micro_batch": "1"}
        for i, (tp, pp) in enumerate(DEGREES)
    ]


def scored(factor: float = 1.0):
    """A validation whose measured times are the predictions times a factor."""
    runs = parse_runs(sweep()).runs
    seconds = predict_runs(runs, Calibration(), with_memory=False).step_seconds
    exact = [
        replace(r, step_seconds=float(s * factor)) for r, s in zip(runs, seconds, strict=True)
    ]
    return score(exact, (), Calibration())


def test_a_perfect_prediction():
    figures = scored().figures(None)
    assert set(figures) == FIGURES
    assert figures["scored"] == len(DEGREES)
    assert figures["mean_abs_error"] == pytest.approx(0)
    assert figures["spearman"] == pytest.approx(1)
    assert figures["kendall_tau"] == pytest.approx(1)
    assert figures["max_regret"] == 0
    assert figures["interval_coverage"] == 1
    assert figures["memory"] is None
    assert figures["verdicts"]["ran"] == len(DEGREES)


def test_a_constant_factor_is_bias_and_no_regret():
    figures = scored(2.0).figures("mine")
    assert figures["bias"] == pytest.approx(-0.5)
    assert figures["median_abs_error"] == pytest.approx(0.5)
    assert figures["kendall_tau"] == pytest.approx(1)
    assert figures["mean_regret"] == 0
    assert figures["interval_coverage"] == 0


def test_regret_is_measured_time_of_the_pick_over_the_best():
    runs = parse_runs(sweep()).runs
    measured = [replace(run, step_seconds=1.0 + i) for i, run in enumerate(runs)]
    predicted = np.array([5.0, 3.0, *([9.0] * 7)])
    (found,) = find_sweeps(measured, predicted)
    assert found.regret == pytest.approx(1.0)
    assert found.size == len(DEGREES)


def test_the_document_is_plain_json():
    document = scored().to_dict()
    assert set(document) == {"overall", "groups", "unscored"}
    assert set(document["groups"]) == {"mine"}
    assert json.loads(json.dumps(document)) == document


def test_a_broken_table_gives_reasons_and_a_report(tmp_path: Path):
    rows = [*sweep(), {**GOOD, "id": "bad", "hidden": "x"}, {**GOOD, "id": "r0"}]
    path = tmp_path / "runs.csv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(GOOD))
        writer.writeheader()
        writer.writerows(rows)
    found = validate(path, calibration=Calibration())
    assert found.to_dict()["unscored"] == {"hidden is not a number": 1, "duplicate id": 1}
    write_report(found, tmp_path / "report.csv")
    with (tmp_path / "report.csv").open(newline="", encoding="utf-8") as stream:
        report = list(csv.DictReader(stream))
    assert len(report) == len(rows)
    assert report[0]["error"]
    assert "hidden" in report[-2]["reason"]


def test_a_table_without_any_time(tmp_path: Path):
    path = tmp_path / "runs.csv"
    path.write_text("id,layers\na,12\n", encoding="utf-8")
    figures = validate(path).to_dict()["overall"]
    assert figures["scored"] == 0
    assert figures["mean_abs_error"] is None
    assert figures["verdicts"] is None


def test_runs_out_of_memory_are_verdicts_not_times():
    rows = [{**GOOD, "id": "x", "outcome": "oom", "layers": "96", "hidden": "12288",
             "heads": "96", "tp": "1", "pp": "1", "micro_batch": "4"}]  # fmt: skip
    found = score(parse_runs(rows).runs, (), Calibration()).figures(None)
    assert found["scored"] == 0
    assert found["verdicts"]["oom_rejected"] == 1
