"""``--config``: a question kept in a file, and the plan that remembers what asked for it."""

import shlex
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer

OUTPUT_FLAGS = ("config", "output", "plot", "json", "help")
"""Flags that say where the answer goes: no part of a question."""


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Take the flags that the command line leaves out from a TOML file or a plan.

    Raises:
        ValueError: If the file cannot be read or holds a name that is no flag of the command.
    """
    if path is None:
        return None
    flags = _flags(context)
    defaults: dict[str, Any] = {}
    for key, value in _read(path).items():
        name = key.replace("_", "-")
        if name not in flags or name in ("config", "help"):
            near = get_close_matches(name, flags, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(flags)}"
            raise ValueError(f"{path}: {key!r} is not a flag of {context.info_name}{hint}")
        defaults[flags[name].name] = _checked(flags[name], value, where=f"{path}: {key!r}")
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


def _checked(parameter: Any, value: Any, *, where: str) -> Any:
    """A value as the parameter takes it: a list where a flag may be repeated, else one value."""
    if getattr(parameter, "multiple", False):
        return value.split() if isinstance(value, str) else value
    if isinstance(value, dict | list):
        raise ValueError(f"{where} takes one value, got {value!r}")
    return value


def asked(context: typer.Context) -> dict[str, str]:
    """The question as a plan keeps it: the command line, and each flag that was given."""
    given = {"command": shlex.join(["planner", *sys.argv[1:]])}
    for name, parameter in _flags(context).items():
        value = context.params.get(str(parameter.name))
        source = context.get_parameter_source(str(parameter.name))
        if name in OUTPUT_FLAGS or not value or source is None or source.name == "DEFAULT":
            continue
        given[name] = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return given


def _flags(context: typer.Context) -> dict[str, Any]:
    """Parameters of the command by the long name of their flag, without dashes."""
    return {
        word.removeprefix("--"): parameter
        for parameter in context.command.params
        for word in parameter.opts
        if word.startswith("--")
    }


def _read(path: Path) -> dict[str, Any]:
    import tomllib

    if path.suffix == ".json":
        from planner.plan import read_plan

        found = {k: v for k, v in read_plan(path).inputs.items() if k != "command"}
        if not found:
            raise ValueError(f"{path} does not say which question it answers")
        return found
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from None


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", is_eager=True, callback=read_config,
        help="Flags from a TOML file, or the question of a plan.json; words given here win.",
    ),
]  # fmt: skip
