"""What a report is made of, worked out anew from a plan file."""

from planner.appraisal import appraise
from planner.calibration import load_calibration
from planner.compare import Comparison
from planner.plan import Plan
from planner.report.page import Report
from planner.search import search
from planner.setting import setting_of


def gather(
    plan: Plan, *, cluster: str | None = None, comparison: Comparison | None = None
) -> Report:
    """Appraise a plan's layout once more, and search its question for the front.

    Args:
        plan: What the page is about.
        cluster: Where the plan's cluster is not known by its name.
        comparison: Beside a measurement of this very plan.

    Raises:
        ValueError: If the cluster is not known, or the layout breaks a rule there.
    """
    setting = setting_of(plan, cluster=cluster)
    constants = load_calibration(plan.calibration)
    results = {}
    for devices in scaling_devices(setting.num_devices, setting.cluster.num_devices):
        results[devices] = search(
            setting.model, setting.job, setting.cluster, setting.framework, constants,
            num_devices=devices,
        )  # fmt: skip
    return Report(
        plan=plan, appraisal=appraise(setting, plan.layout, constants),
        result=results[setting.num_devices],
        scaling=tuple(r for r in results.values() if r.best is not None), comparison=comparison,
    )  # fmt: skip


def scaling_devices(devices: int, limit: int = 0) -> list[int]:
    """Numbers of devices for a scaling curve: a quarter, a half, as many, twice as many.

    >>> scaling_devices(32), scaling_devices(2), scaling_devices(8, 8)
    ([8, 16, 32, 64], [1, 2, 4], [2, 4, 8])
    """
    wanted = [devices // 4, devices // 2, devices, 2 * devices]
    return sorted({n for n in wanted if n >= 1 and (n <= limit or not limit or n == devices)})
