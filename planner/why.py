"""Why a plan is as it is: its rivals, what binds it, and what would make it fit or lose."""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.appraisal import complete_layout, question_of
from planner.calibration import load_calibration
from planner.cost.memory.remedies import MemoryRemedy, remedies
from planner.layout import parse_layout_settings
from planner.plan import Plan
from planner.search import search
from planner.search.explain import Explanation, explain, price
from planner.search.pricing import Pricing
from planner.search.result import Candidate
from planner.setting import Setting

TINY_SHARE = 1e-4
"""Of a step: changes below it are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedRemedy:
    """A change that saves memory, with its price in step time."""

    remedy: MemoryRemedy
    step_seconds: float | None
    """After the change; None where the change cannot run."""
    slower: float | None
    """Step after over step before, less one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """All that ``planner explain`` says."""

    explanation: Explanation
    remedies: tuple[PricedRemedy, ...]
    """Cheapest in step time first."""
    considered: int
    faster: Candidate | None
    """The search's best, if the plan is not it."""


def explain_plan(plan: Plan, setting: Setting, *, against: Sequence[str] = ()) -> Answer:
    """Explain a plan's layout in its own setting.

    Args:
        plan: Read from its file.
        setting: Its question.
        against: Rival layouts in words; what they leave open is filled in.

    Raises:
        ValueError: If the plan's layout cannot run there, or a rival's words are wrong.
    """
    constants = load_calibration(plan.calibration)
    rivals = [complete_layout(parse_layout_settings(words), setting) for words in against]
    found = search(
        setting.model, setting.job, setting.cluster, setting.framework, constants,
        num_devices=setting.num_devices,
    )  # fmt: skip
    # A plan may be tighter than a recommendation: it is explained on the whole device.
    pricing = Pricing(
        question=question_of(setting), calibration=constants,
        max_memory_bytes=setting.cluster.device.memory_bytes,
    )  # fmt: skip
    explained = explain(plan.layout, pricing, against=rivals, ranked=found.ranked)
    best = found.best
    is_best = best is None or best.step_seconds >= explained.candidate.step_seconds * (
        1 - TINY_SHARE
    )
    return Answer(
        explanation=explained,
        remedies=tuple(_priced_remedies(plan, setting, pricing, explained.candidate)),
        considered=found.considered,
        faster=None if is_best else best,
    )


def _priced_remedies(
    plan: Plan, setting: Setting, pricing: Pricing, now: Candidate
) -> list[PricedRemedy]:
    changes = remedies(
        setting.model, setting.job, setting.framework, plan.layout,
        device=setting.cluster.device,
    )  # fmt: skip
    # A changed job (another optimizer) is priced as the same step: only its bytes differ.
    priced = [
        _price_of(remedy, pricing, now) if remedy.job == setting.job else now.step_seconds
        for remedy in changes
    ]
    result = [
        PricedRemedy(
            remedy=remedy, step_seconds=seconds,
            slower=None if seconds is None else seconds / now.step_seconds - 1,
        )
        for remedy, seconds in zip(changes, priced, strict=True)
    ]  # fmt: skip
    return sorted(result, key=lambda r: float("inf") if r.slower is None else r.slower)


def _price_of(remedy: MemoryRemedy, pricing: Pricing, now: Candidate) -> float | None:
    (found,) = price([remedy.layout], pricing)
    return found.step_seconds if isinstance(found, Candidate) else None
