"""Programs whose shortened forms a schedule refuses are played whole."""

import pytest

from planner.api import recommend


@pytest.mark.parametrize("forbid", [(), ("schedule=interleaved",)])
def test_odd_numbers_of_microbatches_get_an_answer(forbid):
    """MT-NLG's own machine: 34 microbatches are equal rounds of pp 7, 27 would not be."""
    answer = recommend(
        "mt-nlg-530b", gpus=2240, cluster="a100-80g-8x200g", global_batch=1920, forbid=forbid
    )
    assert answer.best is not None
    assert answer.best.layout.world_size == 2240
