"""Calibration files: found by name, read back equal, refused when wrong."""

from pathlib import Path

import pytest

from planner.calibration import (
    Calibration,
    StepConstants,
    list_calibrations,
    load_calibration,
    save_calibration,
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PLANNER_HOME", str(tmp_path))
    return tmp_path


def test_the_shipped_one_is_fitted():
    found = load_calibration("default")
    assert found.name == "default"
    assert found.rows > 100
    assert found.spread.low < 0 < found.spread.high


def test_written_and_read_by_name(home: Path):
    mine = Calibration(name="mine", step=StepConstants(device_rates={"ampere": 0.9}))
    path = save_calibration(mine)
    assert path == home / "calibrations" / "mine.json"
    assert load_calibration("mine") == mine
    assert load_calibration(str(path)) == mine
    assert list_calibrations() == ["default", "mine"]


def test_a_users_default_comes_first(home: Path):
    save_calibration(Calibration(name="default", source="own"))
    assert load_calibration().source == "own"


@pytest.mark.parametrize("name", ["kernels", "communication", "nobody"])
def test_unknown_names_list_the_known_ones(name: str):
    with pytest.raises(ValueError, match="there are default"):
        load_calibration(name)


@pytest.mark.parametrize("name", ["", "..", ".hidden"])
def test_names_are_plain_words(name: str):
    with pytest.raises(ValueError, match="plain word"):
        load_calibration(name)


def test_negative_constants_are_refused():
    with pytest.raises(ValueError, match="overlap_slowdown"):
        StepConstants(overlap_slowdown=-1.0)
    with pytest.raises(ValueError, match="device_rates"):
        StepConstants(device_rates={"ampere": -1.0})


def test_a_foreign_file_is_refused(tmp_path: Path):
    path = tmp_path / "x.json"
    path.write_text('{"kind": "plan"}', encoding="utf-8")
    with pytest.raises(ValueError, match="not a calibration"):
        load_calibration(str(path))
