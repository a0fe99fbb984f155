"""Switches of a Megatron command line, as the notes of a row repeat them after ``flags:``."""

import re
from dataclasses import dataclass, field

from planner.runs.columns import Row


@dataclass(frozen=True, slots=True)
class Flags:
    """Switches with their values; an empty set means that the row states none."""

    values: dict[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.values)

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def text(self, name: str) -> str:
        """The value of a switch, or an empty text."""
        return self.values.get(name, "")

    def number(self, name: str) -> int:
        """The whole number that a switch is set to, or 0."""
        text = self.text(name)
        return int(text) if text.isdigit() else 0


def read_flags(row: Row) -> Flags:
    """The switches of a row.

    >>> flags = read_flags(Row({"notes": "CI run; flags: swiglu kv-channels=64"}))
    >>> "swiglu" in flags, flags.number("kv-channels"), bool(read_flags(Row({})))
    (True, 64, False)
    """
    found = re.search(r"flags: (.*)", row.text("notes"))
    if found is None:
        return Flags()
    words = found[1].split(";")[0].split()
    pairs = (word.partition("=") for word in words)
    return Flags({name: value for name, _, value in pairs})


def dense_layers_first(flags: Flags) -> int:
    """Dense layers before the first layer of experts: ``([0]*3+[1]*11)`` says 3."""
    found = re.search(r"\(\[0\]\*(\d+)\+", flags.text("moe-layer-freq"))
    return int(found[1]) if found else 0
