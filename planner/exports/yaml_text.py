"""YAML in and out: plain values only, order kept."""

from collections.abc import Mapping
from typing import Any


def write_yaml(document: Mapping[str, Any]) -> str:
    """Block style, keys in the order given."""
    import yaml

    return yaml.safe_dump(_plain(document), sort_keys=False, default_flow_style=False, width=99)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def read_yaml(text: str) -> dict[str, Any]:
    """One mapping from a YAML text.

    Raises:
        ValueError: If it is not YAML, or holds no mapping.

    >>> read_yaml("a: {b: 1}")
    {'a': {'b': 1}}
    """
    import yaml

    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise ValueError(f"not valid YAML{where}") from None
    if not isinstance(document, dict):
        raise ValueError(f"holds a {type(document).__name__}, not a YAML mapping")
    return document
