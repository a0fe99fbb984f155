"""What every target has in common: what it says, what it cannot say, what was read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from planner import __version__
from planner.exports.decoder import Decoder
from planner.layout import DEFAULT_AXIS_ORDER, Axis, Layout, format_layout
from planner.plan import Plan


class Unrecognised(ValueError):
    """The text is of another target's form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A plan in a target's own words."""

    options: Mapping[str, Any]
    """By the target's own names; nested as its file nests them."""
    unsaid: tuple[str, ...] = ()
    """What the plan holds and the target has no word for."""
    script: tuple[str, ...] = ()
    """What belongs to the user's own training script, in the words of its flags."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the target needs before it starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a configuration file says, as far as this program understands it."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Fields of ``Layout``."""
    names: dict[str, str] = field(default_factory=dict)
    """The target's own name of a field, for messages."""
    world_size: int = 0
    """Ranks, where the file states them; 0 if it does not."""
    global_batch: int = 0
    sequence_length: int = 0
    precision: str = ""
    optimizer: str = ""
    decoder: Decoder | None = None
    ignored: tuple[str, ...] = ()
    """What was seen and has no meaning here, or none that this program prices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A framework that a plan can be handed to."""

    name: str
    version: str
    """Of the framework whose parser the names were checked against."""
    framework: str
    """Profile by which its memory and time are predicted."""
    file_name: str
    program: tuple[str, ...]
    """What each rank runs: words after ``torchrun``; ``{file}`` is the written file, ``{module}``
    the Python module it makes."""
    say: Callable[[Plan], Said]
    write: Callable[[Said, Plan], dict[str, str]]
    """Files by name, the main one first."""
    read: Callable[[str], Reading]
    comment: str = "# "
    """Start of a comment line; empty where the format has none."""
    forbid: tuple[str, ...] = ()
    """Constraints that keep a search to what the target can say."""
    fixed: str = ""
    """Likewise, values that are given."""


def header(name: str, version: str, plan: Plan, said: Said) -> list[str]:
    """First lines of every export: what it is for, by whom, what is left out."""
    lines = [
        f"{name} {version}: {plan.model.name} on {plan.layout.world_size} devices of "
        f"{plan.cluster}, written by parallel-planner {__version__}.",
        f"layout: {format_layout(plan.layout)}",
        f"ranks: {rank_order(plan.layout)}, {plan.devices_per_node} to a node",
    ]
    lines += [f"environment: {key}={value}" for key, value in said.environment.items()]
    lines += [f"training script: {words}" for words in said.script]
    lines += [f"NOT SAID: {words}" for words in said.unsaid]
    return lines


def commented(lines: list[str], comment: str = "# ") -> str:
    """Lines as comments."""
    return "".join(f"{comment}{line}".rstrip() + "\n" for line in lines)


def effective_order(layout: Layout) -> tuple[Axis, ...]:
    """The axes that have more than one rank, innermost first.

    >>> effective_order(Layout(dp=4, pp=2))
    ('dp', 'pp')
    """
    return tuple(axis for axis in layout.axis_order if getattr(layout, axis) > 1)


def rank_order(layout: Layout) -> str:
    """Which axis has neighbouring ranks, in words.

    >>> rank_order(Layout(dp=4, tp=2))
    'tp innermost, then dp'
    """
    order = effective_order(layout)
    return " innermost, then ".join(order[:1] + (", then ".join(order[1:]),) * (len(order) > 1)) \
        + (" only" if len(order) == 1 else "") if order else "one rank"  # fmt: skip


def order_unsaid(layout: Layout, orders: tuple[tuple[Axis, ...], ...] = ()) -> list[str]:
    """A line if ranks are to be numbered in a way that is none of the target's."""
    known = orders or (DEFAULT_AXIS_ORDER,)
    wanted = effective_order(layout)
    for order in known:
        if wanted == tuple(axis for axis in order if axis in wanted):
            return []
    return [f"rank order {'-'.join(layout.axis_order)}: it numbers ranks "
            f"{' or '.join('-'.join(order) for order in known)}"]  # fmt: skip


def flatten(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested options by dotted names.

    >>> flatten({"a": {"b": 1}, "c": [2]})
    {'a.b': 1, 'c': [2]}
    """
    flat: dict[str, Any] = {}
    for key, value in options.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def table_of(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A nested table of a file; empty where it is missing.

    Raises:
        ValueError: If the key holds something else.
    """
    value = document.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{key} must hold a table of settings, got {value!r}")
    return value


def whole(table: Mapping[str, Any], key: str, default: int = 0) -> int:
    """A whole number of a file.

    Raises:
        ValueError: If it is something else.

    >>> whole({"a": "auto"}, "a"), whole({"a": "8"}, "a"), whole({}, "a", 1)
    (0, 8, 1)
    """
    value = table.get(key)
    if value is None or value in ("auto", "null", "None", ""):
        return default
    try:
        if isinstance(value, bool) or int(value) != float(value):
            raise TypeError
    except (TypeError, ValueError):
        raise ValueError(f"{key} must be a whole number, got {value!r}") from None
    return int(value)
