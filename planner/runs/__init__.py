"""Tables of training runs: one row per run, each either a case to predict or a reason why not.

The columns are those of ``benchmarks/published/README.md``; any subset that determines a run
is enough, unknown columns are ignored. Nothing in a row can raise: what cannot be read is
listed with its reason.
"""

from planner.runs.reader import Run, RunTable, Unscored, read_runs, write_runs

__all__ = ["Run", "RunTable", "Unscored", "read_runs", "write_runs"]
