"""Sizes, counts and durations as people write and read them."""

import re

__all__ = ["format_bytes", "format_count", "format_duration", "parse_bytes"]

_DECIMAL = {f"{prefix}B": 1000**power for power, prefix in enumerate("KMGTP", 1)}
_BINARY = {f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGTP", 1)}
_UNITS = {"B": 1, **_DECIMAL, **_BINARY}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str) -> int:
    """Return the number of bytes that ``text`` states.

    Args:
        text: A number with a unit, for example ``512MiB`` (powers of 1024) or ``80GB`` (powers of 1000).

    Raises:
        ValueError: if there is no unit, or the unit is ambiguous (``8G``) or unknown.

    >>> parse_bytes("8GiB"), parse_bytes("1.5KB"), parse_bytes("12B")
    (8589934592, 1500, 12)
    """
    match = _SIZE.fullmatch(text)
    if match and match[2] in _UNITS:
        return int(float(match[1]) * _UNITS[match[2]])
    if match and match[2].upper() in ("K", "M", "G", "T", "P"):
        number, unit = match[1], match[2].upper()
        raise ValueError(
            f"{text!r} is ambiguous: write {number}{unit}B (powers of 1000) or {number}{unit}iB (powers of 1024)"
        )
    raise ValueError(f"{text!r} is not a size: write bytes as an integer, or a string like 512MiB, 8GiB, 80GB")


def format_bytes(num_bytes: float) -> str:
    """Return a size in binary units with three significant digits.

    >>> format_bytes(0), format_bytes(1023), format_bytes(1536), format_bytes(8 * 2**30)
    ('0 B', '1023 B', '1.50 KiB', '8.00 GiB')
    """
    if abs(num_bytes) < 1024:
        return f"{num_bytes:.0f} B"
    value = float(num_bytes)
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        value /= 1024
        if abs(value) < 999.5 or unit == "PiB":  # what would round to 1000 is one of the next unit
            break
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:.{digits}f} {unit}"


def format_count(value: float) -> str:
    """Return a count with thousands separators, without decimals.

    >>> format_count(1234567)
    '1,234,567'
    """
    return f"{value:,.0f}"


def format_duration(seconds: float) -> str:
    """Return a duration in the unit that reads best.

    >>> format_duration(0.0000123), format_duration(0.25), format_duration(75), format_duration(7384)
    ('12.3 us', '250.0 ms', '1 min 15 s', '2 h 03 min')
    """
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 59.995:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
