"""Which layouts can run at all: one validator, for one layout or a million.

Every rule is a pair: a mask over a ``LayoutTable`` and a sentence for one ``Layout``. The
search counts the masks, ``explain_rules`` speaks the sentences, so that both always agree.
Where frameworks differ, the framework profile decides and the sentence says whose rule it is.
"""

import numpy as np
from numpy.typing import NDArray

from planner.cluster import Cluster
from planner.framework import Framework
from planner.job import Job
from planner.layout import Layout, Rejected
from planner.layout_table import LayoutTable, tabulate
from planner.model import Model
from planner.rules.batch import BATCH_RULES
from planner.rules.core import Booleans, Question, Rule
from planner.rules.degrees import DEGREE_RULES
from planner.rules.memory_savers import SAVER_RULES
from planner.rules.pipeline import PIPELINE_RULES, explain_split, with_split

__all__ = ["RULES", "Question", "Rule", "broken_rules", "explain_rules"]

RULES: tuple[Rule, ...] = (*DEGREE_RULES, *PIPELINE_RULES, *SAVER_RULES, *BATCH_RULES)
"""In the order in which a layout is blamed: the first broken rule names the rejection."""


def broken_rules(
    table: LayoutTable, question: Question, *, weights: NDArray[np.int64] | None = None
) -> tuple[Booleans, dict[str, int]]:
    """Which layouts break a rule, and how many each rule was the first to reject.

    Args:
        table: The layouts.
        question: What is given.
        weights: How many layouts each row stands for; 1 if not given.
    """
    broken = np.zeros(len(table), bool)
    counts: dict[str, int] = {}
    for rule in RULES:
        found = rule.broken(table, question) & ~broken
        number = int(found.sum() if weights is None else weights[found].sum())
        if number:
            counts[rule.name] = number
            broken |= found
    return broken, counts


def explain_rules(
    layout: Layout,
    model: Model,
    job: Job,
    cluster: Cluster,
    framework: Framework,
    *,
    num_devices: int = 0,
) -> list[Rejected]:
    """Every rule that a layout breaks: field, value, rule, and what would be legal.

    Args:
        layout: A missing ``stage_layers`` is filled in by the framework's own rule.
        model: What is trained.
        job: Global batch and sequence length.
        cluster: Where; a cluster that states its number of devices bounds the world.
        framework: Whose rules apply where they differ.
        num_devices: Ranks that will be launched; 0 for as many as the layout needs.
    """
    question = Question(
        model=model, job=job, cluster=cluster, framework=framework,
        num_devices=num_devices or layout.world_size,
    )  # fmt: skip
    if reason := explain_split(layout, question):
        return [Rejected(layout=layout, rule="layers", reason=reason)]
    table = tabulate([with_split(layout, question)], fused_loss_habit=framework.fused_loss)
    return [
        Rejected(layout=layout, rule=rule.name, reason=rule.reason(layout, question))
        for rule in RULES
        if rule.broken(table, question)[0]
    ]
