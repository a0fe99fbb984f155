"""The command line: parse, call, print, exit code. Nothing is computed here.

Exit codes: 0 good, 1 the answer is no (nothing fits, beyond tolerance), 2 bad input.
"""

import os
import sys

import typer

from planner.cli import check, hand, know, run, think, why

app = typer.Typer(
    name="planner",
    help="Choose a parallel training strategy, run it, and see that the prediction was right.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for room in (think, know, run, check, hand, why):
    room.register(app)


def main() -> None:
    """Run a command; wrong input becomes one line on stderr and exit code 2."""
    try:
        app()
    except ValueError as error:
        message, _, hint = str(error).partition("\nhint: ")
        print(f"error: {' '.join(message.split())}", file=sys.stderr)
        if hint:
            print(f"hint: {' '.join(hint.split())}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output has left (`planner list | head`): nothing is wrong.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
