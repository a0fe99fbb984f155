"""The rule of the batch: whole microbatches of every replica."""

from planner.layout import Layout
from planner.layout_table import LayoutTable
from planner.rules.core import Booleans, Question, Rule


def _batch(table: LayoutTable, question: Question) -> Booleans:
    return table.dp * table.microbatch * table.microbatches != question.job.global_batch


def nearest_batches(global_batch: int, step: int) -> tuple[int, int]:
    """The multiples of ``step`` on both sides of a batch that is none.

    >>> nearest_batches(1000, 48), nearest_batches(3, 8)
    ((960, 1008), (8, 16))
    """
    below = global_batch // step * step
    return (below, below + step) if below else (step, 2 * step)


def _explain_batch(layout: Layout, question: Question) -> str:
    batch = question.job.global_batch
    step = layout.dp * layout.microbatch
    if batch % step == 0:
        return (
            f"microbatches={layout.microbatches}: dp {layout.dp} x microbatch {layout.microbatch} "
            f"x microbatches makes {layout.global_batch} sequences, but the global batch is "
            f"{batch}; use microbatches={batch // step} or a global batch of {layout.global_batch}"
        )
    low, high = nearest_batches(batch, step)
    return (
        f"global batch {batch} must be a multiple of dp x microbatch = {layout.dp} x "
        f"{layout.microbatch} = {step}; use a global batch of {low} or {high}"
    )


BATCH_RULES: tuple[Rule, ...] = (Rule(name="batch", broken=_batch, reason=_explain_batch),)
