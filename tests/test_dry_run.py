"""The estimate beside the executor's own dry run, through the command's function."""

import pytest

from planner.api import recommend
from planner.dry_run import DryRun, dry_run, stage_of_rank
from planner.plan import write_plan


@pytest.fixture
def plan():
    answer = recommend(
        "tiny-llama", gpus=4, global_batch=8, sequence_length=64, fixed="tp=2,pp=2,schedule=1f1b"
    )
    return answer.plan()


def test_counted_and_estimated_agree_on_the_last_stage(plan, tmp_path):
    path = tmp_path / "plan.json"
    write_plan(path, plan)
    result = dry_run(plan, path, 3)
    assert isinstance(result, DryRun)
    assert result.error == pytest.approx(0.0, abs=0.02)
    for counted, estimated in result.categories.values():
        assert estimated == pytest.approx(counted, rel=0.05, abs=32 * 2**20)


def test_ranks_map_to_stages_by_the_layouts_own_order(plan):
    assert [stage_of_rank(plan, rank) for rank in range(4)] == [0, 0, 1, 1]
    with pytest.raises(ValueError, match="--rank must be 0 to 3, got 4"):
        stage_of_rank(plan, 4)
