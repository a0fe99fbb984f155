"""Run commands in this process, as the shell would: output, error lines, exit code."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from planner.cli import main


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str


@pytest.fixture
def planner(monkeypatch, capsys) -> Callable[..., Finished]:
    def run(*words: str) -> Finished:
        monkeypatch.setattr(sys, "argv", ["planner", *words])
        code: object = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return Finished(int(code or 0), captured.out, captured.err)  # type: ignore[call-overload]

    return run
