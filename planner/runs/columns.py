"""Cells of a run table: text in, checked numbers out, one short reason when that fails."""

import math
import re
from collections.abc import Mapping

NUMBERS = (
    "layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab", "seq_len", "experts", "topk",
    "gpus", "gpus_per_node", "tp", "pp", "vpp", "cp", "ep", "etp", "dp", "micro_batch",
    "global_batch",
)  # fmt: skip
"""Columns that hold whole numbers of 1 or more."""

RATES = ("step_time_s", "tokens_per_s_per_gpu", "peak_mem_gb")
"""Columns that hold positive numbers."""

LARGEST_NUMBER = 2**40  # no count in a training run is larger: more is a slip of the pen


class Unreadable(Exception):
    """Why a row cannot be scored; ``reason`` is the short form that is counted."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(detail or reason)
        self.reason = reason
        self.detail = detail or reason


class Row:
    """One row, with typed access to its cells."""

    def __init__(self, cells: Mapping[str, object]) -> None:
        # Surplus cells of a ragged row come under the key None, as a list.
        self._cells = {
            key: value.strip() for key, value in cells.items() if key and isinstance(value, str)
        }

    def text(self, column: str, default: str = "") -> str:
        """The cell, or ``default`` if it is empty or not there."""
        return self._cells.get(column) or default

    def count(self, column: str, default: int | None = None) -> int:
        """A whole number of 1 or more.

        Raises:
            Unreadable: If it is no such number, or missing without a default.

        >>> Row({"tp": "8.0"}).count("tp")
        8
        """
        text = self.text(column)
        if not text:
            if default is None:
                raise Unreadable(f"missing {column}")
            return default
        number = _number(column, text)
        if number != int(number) or number < 1 or number > LARGEST_NUMBER:
            raise Unreadable(f"{column} must be a whole number of 1 or more", f"{column}={text}")
        return int(number)

    def rate(self, column: str) -> float | None:
        """A positive number, or None if the cell is empty.

        Raises:
            Unreadable: If it is text, not finite, zero or negative.
        """
        text = self.text(column)
        if not text:
            return None
        number = _number(column, text)
        if number <= 0:
            raise Unreadable(f"{column} must be positive", f"{column}={text}")
        return number

    def flag(self, column: str) -> bool | None:
        """1 or 0, or None if the cell is empty."""
        text = self.text(column).lower()
        if text in ("1", "true", "yes", "1.0"):
            return True
        if text in ("0", "false", "no", "0.0"):
            return False
        if not text:
            return None
        raise Unreadable(f"{column} must be 1 or 0", f"{column}={text}")

    def choice(self, column: str, choices: tuple[str, ...]) -> str | None:
        """One of a few words, or None if the cell is empty."""
        text = self.text(column).lower()
        if text and text not in choices:
            raise Unreadable(f"{column} must be one of {', '.join(choices)}", f"{column}={text}")
        return text or None

    def noted(self, pattern: str) -> int | None:
        """A number that the notes state, by a pattern with one group."""
        found = re.search(pattern, self.text("notes"))
        return int(found[1]) if found else None

    def check(self) -> None:
        """Refuse text and nonsense in any numeric column, used or not.

        Raises:
            Unreadable: Naming the first bad column.
        """
        for column in NUMBERS:
            self.count(column, default=1)
        for column in RATES:
            self.rate(column)


def _number(column: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise Unreadable(f"{column} is not a number", f"{column}={text[:40]!r}") from None
    if not math.isfinite(number):
        raise Unreadable(f"{column} is not a number", f"{column}={text[:40]!r}")
    return number
