"""``show`` and ``list``: what is known; ``schema``: what the files look like."""

import json
import sys
from typing import Annotated

import typer

from planner.cli.common import JsonOption, console, print_json


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(show)
    app.command(name="list")(list_known)
    app.command()(schema)


def show(
    model: Annotated[str, typer.Argument(help="Preset, or a config.json or its folder.")],
    as_json: JsonOption = False,
) -> None:
    """Print a model as it was read: dimensions, parameters by part, FLOPs, assumptions.

    Example: planner show llama-7b
    """
    from planner.report.describe import model_document
    from planner.setting import resolve_model

    document = model_document(resolve_model(model))
    if as_json:
        print_json(document)
        return
    from planner.report.tables import model_tables

    for part in model_tables(document):
        console().print(part)


def list_known(
    kind: Annotated[
        str, typer.Argument(help="models, clusters, devices, frameworks or calibrations.")
    ],
    as_json: JsonOption = False,
) -> None:
    """List the presets of one kind.

    Example: planner list clusters
    """
    from planner.catalogue import KINDS, list_presets

    if kind not in KINDS:
        raise ValueError(f"cannot list {kind!r}; it is one of {', '.join(KINDS)}")
    names = list_presets(kind)
    if as_json:
        print_json({kind: names})
        return
    for name in names:
        print(name)


def schema(
    kind: Annotated[str, typer.Argument(help="plan or measurement.")],
) -> None:
    """Print the JSON schema of a file that this program writes and reads.

    Example: planner schema plan
    """
    from planner.schema import file_schema

    json.dump(file_schema(kind), sys.stdout, indent=1)
    sys.stdout.write("\n")
