"""Start the executor's programs as processes: the planner itself never imports them."""

import os
import subprocess
import sys


def child_environment() -> dict[str, str]:
    """Ours, with Python's safe path.

    It keeps a user's ``types.py`` in the working folder from standing in for the standard
    library.
    """
    return {**os.environ, "PYTHONSAFEPATH": "1"}


def run_executor(module: str, *arguments: str) -> int:
    """Run ``python -m executor.<module>`` to its end; its exit code.

    A Ctrl-C reaches the child as well, which ends its ranks: wait for it.
    """
    command = [sys.executable, "-m", f"executor.{module}", *arguments]
    process = subprocess.Popen(command, env=child_environment())
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue
