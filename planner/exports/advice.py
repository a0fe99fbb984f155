"""What would be better than a run's own configuration, in its own option names."""

from dataclasses import dataclass
from typing import Any

from planner.appraisal import Appraisal, appraise, plan_of
from planner.calibration import Calibration
from planner.exports.core import Target, flatten
from planner.plan import Plan
from planner.search import search

WORTHWHILE = 0.01
"""A gain below this share of the step is no advice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One option, now and in the best plan; None where it is absent."""

    option: str
    now: Any
    best: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The best plan that the target can say, and what to change for it."""

    best: Appraisal | None
    """None if nothing fits."""
    changes: tuple[Change, ...] = ()
    unsaid: tuple[str, ...] = ()
    """What the best plan holds beside, which the target has no word for."""

    def gain(self, now: Appraisal) -> float:
        """How many times faster the best is; 1 if it is no better, or now does not fit."""
        if self.best is None:
            return 1.0
        return now.time.step_seconds / self.best.time.step_seconds


def advise(now: Appraisal, target: Target, calibration: Calibration) -> Advice:
    """Search the same job on the same devices, within what the target can say."""
    setting = now.setting
    result = search(
        setting.model, setting.job, setting.cluster, setting.framework, calibration,
        num_devices=setting.num_devices, fixed=target.fixed, forbid=target.forbid, top=6,
    )  # fmt: skip
    if result.best is None:
        return Advice(best=None)
    appraisals = (appraise(setting, ranked.layout, calibration) for ranked in result.ranked)
    sayable = ((one, target.say(plan_of(one))) for one in appraisals)
    choices = []
    for one, said in sayable:
        choices.append((one, said))
        if not said.unsaid:
            break
    best, said = next((c for c in choices if not c[1].unsaid), choices[0])
    if now.fits and best.time.step_seconds > now.time.step_seconds * (1 - WORTHWHILE):
        return Advice(best=now)
    return Advice(
        best=best, unsaid=said.unsaid, changes=changes_between(plan_of(now), plan_of(best), target)
    )


def changes_between(now: Plan, best: Plan, target: Target) -> tuple[Change, ...]:
    """Options that differ between two plans, by the target's names."""
    before, after = (flatten(target.say(plan).options) for plan in (now, best))
    names = dict.fromkeys([*before, *after])
    return tuple(
        Change(option=name, now=before.get(name), best=after.get(name))
        for name in names
        if before.get(name) != after.get(name)
    )
