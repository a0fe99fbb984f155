"""How fast the search answers: cold process, clusters of today, rate of one core, growth.

    python -m benchmarks.search_speed            # prints, and writes the report beside it

Wall time is that of a fresh process, imports included; processor time is what it would take
on a core of its own. The rates of others are those that their authors or we measured on two
cores of the same kind: Calculon (github calculon-ai/calculon) about 120 layouts a second, a
published alternative with measured kernels (SimuMax) 131 layouts in 15 s.
"""

import json
import platform
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

REPORT = Path(__file__).parent / "reports" / "search_speed.md"
QUESTIONS = {
    "llama-7b, 32 A100": ("llama-7b", 32, "a100-80g-8x200g", False),
    "llama-7b, 32 A100, full space": ("llama-7b", 32, "a100-80g-8x200g", True),
    "gpt3-175b, 1,024 A100": ("gpt3-175b", 1024, "a100-80g-8x200g", False),
    "llama-3-405b, 16,384 H100": ("llama-3-405b", 16384, "h100-8x400g", False),
    "deepseek-v3, 2,048 H100": ("deepseek-v3", 2048, "h100-8x400g", False),
}
CALCULON_LAYOUTS_PER_SECOND = 120.0

ONE = """
import json, resource, sys, time
began = time.perf_counter()
from planner.calibration import load_calibration
from planner.search import search
from planner.setting import resolve
model, devices, cluster, full = json.loads(sys.argv[1])
setting = resolve(model=model, num_devices=devices, cluster=cluster)
found = search(
    setting.model, setting.job, setting.cluster, setting.framework, load_calibration(),
    num_devices=devices, full=full,
)
usage = resource.getrusage(resource.RUSAGE_SELF)
legal = found.fitting + found.outpaced + found.rejected.get("memory", 0)
print(json.dumps({
    "considered": found.considered, "legal": legal, "fitting": found.fitting,
    "priced": found.priced, "search_seconds": found.search_seconds,
    "cpu_seconds": usage.ru_utime + usage.ru_stime, "peak_gib": usage.ru_maxrss / 2**20,
}))
"""


def ask(question: tuple[str, int, str, bool]) -> dict[str, float]:
    """One question in a fresh process."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", ONE, json.dumps(question)], capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return {**json.loads(done.stdout), "wall_seconds": time.perf_counter() - began}


def closed_form_rate(rows: int) -> tuple[float, float]:
    """Layouts per second of processor time through ``memory`` and ``step``, on one core."""
    from planner.calibration import load_calibration
    from planner.cost.memory import memory
    from planner.cost.step import step
    from planner.rules import Question, broken_rules
    from planner.search.constraints import Constraints
    from planner.search.space import build_space
    from planner.setting import resolve

    setting = resolve(model="llama-7b", num_devices=32)
    question = Question(
        model=setting.model, job=setting.job, cluster=setting.cluster,
        framework=setting.framework, num_devices=32,
    )  # fmt: skip
    table = next(build_space(question, Constraints(), full=True).chunks(rows))
    broken, _ = broken_rules(table, question)
    table = table.take(np.flatnonzero(~broken)[:rows])
    constants = load_calibration()
    began = time.process_time()
    memory(question.model, question.job, question.framework, table,
           device=question.cluster.device)  # fmt: skip
    between = time.process_time()
    step(question.model, question.job, question.cluster, question.framework, table, constants)
    return len(table) / (between - began), len(table) / (time.process_time() - between)


def growth() -> list[tuple[int, float]]:
    """Layouts considered and processor time, for one model on more and more devices."""
    points = []
    for devices in (32, 128, 512, 2048, 8192):
        found = ask(("llama-3-70b", devices, "h100-8x400g", False))
        points.append((int(found["considered"]), found["cpu_seconds"]))
    return points


def main() -> None:
    """Measure, print and write."""
    lines = [
        "# Speed of the search",
        "",
        f"`python -m benchmarks.search_speed`, {platform.machine()}, numpy {np.__version__}, "
        f"{time.strftime('%Y-%m-%d')}. One process, one thread.",
        "",
        "| question | layouts | break no rule | timed | wall s | CPU s | peak GiB | "
        "at Calculon's rate |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, question in QUESTIONS.items():
        r = ask(question)
        hours = r["considered"] / CALCULON_LAYOUTS_PER_SECOND / 3600
        lines.append(
            f"| {name} | {r['considered']:,} | {r['legal']:,} | {r['priced']:,} | "
            f"{r['wall_seconds']:.2f} | {r['cpu_seconds']:.2f} | {r['peak_gib']:.2f} | "
            f"{hours:.1f} h |"
        )
        print(lines[-1], flush=True)
    lines += ["", "Layouts include every k of full recompute of k layers; of those one is timed,",
              "the least that fits. What a bound shows to be slower than the best is not timed.",
              "", "## Closed form on one core", "",
              "| layouts at once | memory, per second | step time, per second |",
              "|---|---|---|"]  # fmt: skip
    closed_form_rate(1000)  # warm
    for rows in (10_000, 100_000, 1_000_000):
        memories, times = closed_form_rate(rows)
        lines.append(f"| {rows:,} | {memories:,.0f} | {times:,.0f} |")
        print(lines[-1], flush=True)
    lines += ["", "## Growth", "", "llama-3-70b on 32 to 8,192 H100.", "",
              "| layouts | CPU s | us per layout |", "|---|---|---|"]  # fmt: skip
    for layouts, seconds in growth():
        lines.append(f"| {layouts:,} | {seconds:.2f} | {1e6 * seconds / layouts:.2f} |")
        print(lines[-1], flush=True)
    REPORT.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
