"""Fitting step constants: known ones come back, unknown ones are named."""

from dataclasses import replace

import numpy as np
import pytest

from planner.calibration import Calibration, StepConstants
from planner.fit import cross_validate, fit, spread_of
from planner.predict_runs import predict_runs
from planner.runs import Run
from planner.runs.reader import parse_runs
from tests.runs.test_reader import GOOD


def runs_by(truth: Calibration, *, noise: float = 0.0) -> list[Run]:
    """Runs of three sources whose times a known calibration made."""
    rows = []
    for source, hidden in (("a", 1024), ("b", 4096), ("c", 8192)):
        for tp, pp, microbatch in [(1, 1, 1), (2, 1, 1), (4, 1, 2), (8, 1, 4), (1, 2, 1),
                                   (2, 2, 2), (4, 2, 1), (1, 4, 4), (2, 4, 1)]:  # fmt: skip
            rows.append(GOOD | {
                "id": f"{source}{tp}{pp}", "prefix": source, "hidden": str(hidden),
                "tp": str(tp), "pp": str(pp), "micro_batch": str(microbatch),
                "global_batch": "128",
            })  # fmt: skip
    runs = parse_runs(rows).runs
    assert len(runs) == len(rows)
    seconds = predict_runs(runs, truth, with_memory=False).step_seconds
    shake = np.exp(noise * np.random.default_rng(0).standard_normal(len(runs)))
    return [
        replace(run, step_seconds=float(s)) for run, s in zip(runs, seconds * shake, strict=True)
    ]


def test_a_known_rate_comes_back():
    truth = Calibration(step=StepConstants(device_rates={"ampere": 0.95}))
    found = fit(runs_by(truth), name="mine")
    assert found.calibration.step.device_rates["ampere"] == pytest.approx(0.95, abs=0.03)
    assert found.median_error < 0.02  # the priors pull a little
    assert found.rows == 27


def test_noise_widens_the_interval_and_stays_out_of_the_constants():
    truth = Calibration(step=StepConstants(device_rates={"ampere": 0.95}))
    found = fit(runs_by(truth, noise=0.1), name="mine")
    spread = found.calibration.spread
    assert found.calibration.step.device_rates["ampere"] == pytest.approx(0.95, abs=0.05)
    assert 0.06 < spread.high < 0.25
    assert -0.25 < spread.low < -0.06


def test_what_the_runs_say_nothing_about_is_named_with_the_run_that_would():
    found = fit(runs_by(Calibration()), name="mine")
    named = " ".join(found.unidentified)
    assert "overlap_slowdown" in named
    assert "measure" in named
    assert found.calibration.notes == found.unidentified


def test_cross_validation_covers_what_it_should():
    crossed = cross_validate(runs_by(Calibration(), noise=0.1), Calibration())
    assert len(crossed.log_errors) == 27
    assert 0.6 <= crossed.coverage <= 0.95


def test_nothing_to_fit_to():
    with pytest.raises(ValueError, match="step time"):
        fit([], name="mine")


def test_an_interval_holds_its_own_middle():
    spread = spread_of(np.array([0.2, 0.3, 0.4]))
    assert spread.low <= 0 <= spread.high
