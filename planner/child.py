"""Start the executor's programs as processes: the planner itself never imports them."""

import os
import subprocess
import sys


def run_executor(module: str, *arguments: str) -> int:
    """Run ``python -m executor.<module>`` to its end; its exit code.

    Python's safe path keeps a user's ``types.py`` in the working folder from standing in for
    the standard library. A Ctrl-C reaches the child as well, which ends its ranks: wait for it.
    """
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", f"executor.{module}", *arguments]
    process = subprocess.Popen(command, env=environment)
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue
