"""Units: converted once where a file is read and once where a number is shown."""

import re

KIB = 2**10  # bytes in a kibibyte
MIB = 2**20  # bytes in a mebibyte
GIB = 2**30  # bytes in a gibibyte: capacities
GB = 10**9  # bytes in a gigabyte: bandwidths
GBIT = 10**9 / 8  # bytes in a gigabit: network cards
TERA = 10**12  # rates of arithmetic
MICROSECOND = 1e-6

_BYTE_UNITS = {
    "": 1,
    "b": 1,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": 2**40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": GB,
    "tb": 10**12,
}
_COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


def parse_bytes(text: str) -> int:
    """Read an amount of memory such as ``"80GiB"`` or ``"1.5 GB"``.

    Raises:
        ValueError: If the text is not a number followed by a known unit.

    >>> parse_bytes("80GiB")
    85899345920
    """
    return _parse(text, _BYTE_UNITS, "an amount of memory such as 80GiB")


def parse_count(text: str) -> int:
    """Read a count such as ``"4M"`` or ``"1T"``; suffixes are powers of 1,000.

    Raises:
        ValueError: If the text is not a number followed by K, M, B or T.

    >>> parse_count("1.5M")
    1500000
    """
    return _parse(text, _COUNT_UNITS, "a count such as 512 or 4M")


def _parse(text: str, units: dict[str, int], wanted: str) -> int:
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-zA-Z]*)\s*", text)
    if match is None or match[2].lower() not in units:
        raise ValueError(f"{text!r} is not {wanted}")
    return round(float(match[1]) * units[match[2].lower()])


def format_bytes(amount: float) -> str:
    """Write an amount of memory for people.

    >>> format_bytes(65712999629)
    '61.2 GiB'
    """
    for size, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(amount) >= size:
            return f"{amount / size:.1f} {unit}"
    return f"{amount:.0f} B"


def format_count(amount: float) -> str:
    """Write a count with a suffix of thousands.

    >>> format_count(6738415616)
    '6.74B'
    """
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(amount) >= size:
            return f"{amount / size:.3g}{unit}"
    return f"{amount:.3g}"


def format_seconds(seconds: float) -> str:
    """Write a duration for people.

    >>> format_seconds(0.0123), format_seconds(7.5), format_seconds(3 * 86400)
    ('12.3 ms', '7.50 s', '3.0 days')
    """
    steps = ((86400, 86400, "days", 1), (3600, 3600, "h", 1), (120, 60, "min", 1), (1, 1, "s", 2))
    for least, size, unit, digits in steps:
        if seconds >= least:
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"
