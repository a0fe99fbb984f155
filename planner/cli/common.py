"""Options that several commands share, and how results leave the program."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA_VERSION = 1

ModelOption = Annotated[
    str, typer.Option("--model", "-m", help="Preset, or a Hugging Face config.json or its folder.")
]
GpusOption = Annotated[
    int, typer.Option("--gpus", "-n", help="Devices to plan for; 0 for all that the cluster has.")
]
ClusterOption = Annotated[
    str | None,
    typer.Option("--cluster", "-c", help="Preset, a TOML file, DEVICE:PERNODE, or 'here'."),
]
BatchOption = Annotated[
    int | None, typer.Option("--global-batch", help="Sequences (images) per optimizer step.")
]
LengthOption = Annotated[
    int | None, typer.Option("--sequence-length", help="Tokens per sequence.")
]
PrecisionOption = Annotated[
    str | None, typer.Option("--precision", help="fp32, tf32, bf16, fp16, bf16-pure or fp8.")
]
OptimizerOption = Annotated[
    str | None,
    typer.Option("--optimizer", help="adamw, adamw-8bit, sgd-momentum, sgd or lamb."),
]
FrameworkOption = Annotated[
    str | None, typer.Option("--framework", help="Profile of the framework that will train.")
]
CalibrationOption = Annotated[
    str, typer.Option("--calibration", help="Name of a calibration made by 'planner fit'.")
]
PlanArgument = Annotated[Path, typer.Argument(help="A file written by 'planner recommend -o'.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the whole answer as JSON.")]
PlotOption = Annotated[
    Path | None, typer.Option("--plot", help="Draw it: a .png, .svg or .pdf file.")
]


def print_json(document: Mapping[str, Any]) -> None:
    """One JSON document on stdout, with its schema version."""
    json.dump({"schema_version": SCHEMA_VERSION, **document}, sys.stdout, indent=1)
    sys.stdout.write("\n")


def console() -> "Console":
    """Where answers for people go; piped output is not folded at 80 columns."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 120
    return Console(width=width, highlight=False, soft_wrap=False)


def say(message: str) -> None:
    """One line of progress on stderr."""
    print(message, file=sys.stderr, flush=True)


PLOT_SUFFIXES = (".png", ".svg", ".pdf")


def check_plot(path: Path | None) -> None:
    """Say at once, before any work, that a plot cannot be written.

    Raises:
        ValueError: If its suffix is not one of ``PLOT_SUFFIXES``, or it cannot be written.
    """
    if path is not None and path.suffix.lower() not in PLOT_SUFFIXES:
        raise ValueError(f"--plot {path}: a plot is one of {', '.join(PLOT_SUFFIXES)}")
    check_writable(path)


def check_writable(path: Path | None) -> None:
    """Say at once, before any work, that an output file cannot be written.

    Raises:
        ValueError: If the folder is missing or not writable, or the path is a folder.
    """
    import os

    if path is None:
        return
    folder = path.parent
    if not folder.is_dir():
        raise ValueError(f"cannot write {path}: {folder} is not a folder")
    if path.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(f"cannot write {path}: it is a folder or its folder is read-only")
