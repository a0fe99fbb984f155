"""Tables of a preset file, key by key: known keys, right types, base units, one-line errors."""

import difflib
import math
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


class Key(NamedTuple):
    """One key of a preset file: the field it fills, what it holds, its unit in base units."""

    field: str
    holds: type
    scale: float = 1
    choices: tuple[str, ...] = ()


def keys_of(target: type) -> dict[str, Key]:
    """The keys of a dataclass whose file names its fields as they are, in base units.

    >>> from planner.job import Job
    >>> keys_of(Job)["precision"].choices[:2]
    ('fp32', 'tf32')
    """
    keys = {}
    for name, hint in get_type_hints(target).items():
        if get_origin(hint) is Literal:
            keys[name] = Key(name, str, choices=get_args(hint))
        elif hint in (str, bool, int, float):
            keys[name] = Key(name, hint)
    return keys


def read_table(
    table: Mapping[str, object], keys: Mapping[str, Key], *, where: str
) -> dict[str, object]:
    """Values in base units by field; refuses unknown keys, wrong types and negative numbers.

    Raises:
        ValueError: With one line naming the key and what it must hold.

    >>> read_table({"l2_mib": 2}, {"l2_mib": Key("l2_bytes", int, 2**20)}, where="here")
    {'l2_bytes': 2097152}
    """
    values: dict[str, object] = {}
    for name, value in table.items():
        if name not in keys:
            near = difflib.get_close_matches(name, keys, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it knows {', '.join(sorted(keys))}"
            raise ValueError(f"{where}: unknown key {name!r}; {hint}")
        values[keys[name].field] = _value(value, keys[name], where=f"{where}: {name}")
    return values


def _value(value: object, key: Key, *, where: str) -> object:
    if key.holds in (str, bool):
        if not isinstance(value, key.holds):
            wanted = "text" if key.holds is str else "true or false"
            raise ValueError(f"{where} must be {wanted}, got {value!r}")
        if key.choices and value not in key.choices:
            raise ValueError(f"{where} must be one of {', '.join(key.choices)}, got {value!r}")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{where} must be a number, got {value!r}")
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{where} must be a finite number of 0 or more, got {value!r}")
    if key.holds is int and key.scale == 1 and value != int(value):
        raise ValueError(f"{where} must be a whole number, got {value!r}")
    return round(value * key.scale) if key.holds is int else float(value * key.scale)


def build(target: type[T], values: Mapping[str, object], *, where: str) -> T:
    """A dataclass from checked values; what is missing or contradictory names the file.

    Raises:
        ValueError: If a field is missing, or the values break a rule of the class.
    """
    try:
        return target(**values)
    except TypeError as error:
        # Keys are known by now, so what is left is a missing one, which the message names.
        missing = str(error).partition("argument")[2].strip("s: ")
        raise ValueError(f"{where}: {target.__name__.lower()} lacks {missing}") from None
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
