"""Fill the README's generated parts: outputs of its commands, and the accuracy table.

A block that follows ``<!-- run: COMMAND -->`` is replaced by what the command prints (its
first ``lines=N`` lines, if so marked); the block after ``<!-- accuracy -->`` by the figures
of the committed reports.

    python -m benchmarks.readme
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
REPORTS = ROOT / "benchmarks" / "reports"
RUN = re.compile(r"(<!-- run(?: lines=(\d+))?: (.+?) -->\n\n```\w*\n)(.*?)(```)", re.DOTALL)
ACCURACY = re.compile(r"(<!-- accuracy -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def printed(command: str, lines: int | None) -> str:
    """What a planner command writes to a pipe, without trailing blanks."""
    words = shlex.split(command)
    assert words[0] == "planner", f"the README runs the planner only, not {words[0]}"
    finished = subprocess.run(
        [sys.executable, "-m", "planner", *words[1:]],
        check=True, capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    kept = [line.rstrip() for line in finished.stdout.splitlines()][:lines]
    return "\n".join(kept).strip("\n") + "\n"


def table(report: str, number: int = 0) -> str:
    """The n-th table of a committed report."""
    text = (REPORTS / report).read_text(encoding="utf-8")
    found = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    return found[number]


def accuracy() -> str:
    """Step time, then memory against published runs and against the dry run."""
    dry_run = (REPORTS / "dry_run.md").read_text(encoding="utf-8").splitlines()[2]
    return (
        "\nStep time (`benchmarks/reports/accuracy.md`):\n\n"
        f"{table('accuracy.md')}\n"
        "Peak memory against published runs (`benchmarks/reports/memory.md`):\n\n"
        f"{table('memory.md')}\n"
        f"Peak memory against a dry run of the executor's own code: {dry_run}\n\n"
    )


def main() -> int:
    """Rewrite README.md in place."""
    path = ROOT / "README.md"
    text = path.read_text(encoding="utf-8")
    text = RUN.sub(lambda m: m[1] + printed(m[3], int(m[2]) if m[2] else None) + m[5], text)
    text = ACCURACY.sub(lambda m: m[1] + accuracy() + m[3], text)
    path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
