"""A few cases of the dry-run matrix: the whole of it is ``benchmarks/dry_run_matrix.py``."""

import pytest

from benchmarks.dry_run_matrix import PEAK_TOLERANCE, Case, cases, run
from planner.layout import format_layout

pytest.importorskip("torch")
CHOSEN = [
    case
    for case in cases()
    if case.name in ("gpt", "llama hsdp", "llama tied")
    or format_layout(case.layout).startswith("dp=4,tp=4,sp,zero=3,recompute=full")
]


def test_matrix_is_large_enough():
    assert len(list(cases())) >= 48


@pytest.mark.parametrize(
    "case", CHOSEN, ids=lambda c: f"{c.name}-{format_layout(c.layout)}-{c.rank}"
)
def test_estimate_agrees_with_the_dry_run(case: Case):
    outcome = run(case)
    assert abs(outcome.peak_error) <= PEAK_TOLERANCE
    assert outcome.category_misses() == []
