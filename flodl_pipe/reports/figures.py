"""Numbers of a report as text: rates, shares and clock times with the digits that a reader can use."""

from flodl_pipe.units import format_bytes, format_count

__all__ = ["clock", "plural", "rate", "share", "short_rate", "size"]

_MIB = 1 << 20


def size(num_bytes: int) -> str:
    """Return a size, with the exact number of bytes where that is short enough to be of use.

    >>> size(8388608), size(2050)
    ('8.00 MiB', '2.00 KiB (2,050 bytes)')
    """
    exact = f" ({format_count(num_bytes)} bytes)" if 1024 <= num_bytes < _MIB and num_bytes % 1024 else ""
    return f"{format_bytes(num_bytes)}{exact}"


def rate(per_s: float) -> str:
    """Return a rate: three digits below a hundred, whole numbers with separators above.

    >>> rate(0), rate(0.25), rate(3.14159), rate(31.4159), rate(1234567.8)
    ('0', '0.250', '3.14', '31.4', '1,234,568')
    """
    if per_s >= 100 or per_s == 0:
        return format_count(per_s)
    return f"{per_s:.{1 if per_s >= 10 else 2 if per_s >= 1 else 3}f}"


def short_rate(per_s: float) -> str:
    """Return a rate in at most 7 characters, for a line that has little room.

    >>> short_rate(31.4159), short_rate(1234), short_rate(123456), short_rate(1234567)
    ('31.4', '1,234', '123 k', '1.23 M')
    """
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e5, "k")):
        if per_s >= limit:
            scaled = per_s / (1e3 if letter == "k" else limit)
            return f"{scaled:.{0 if scaled >= 100 else 1 if scaled >= 10 else 2}f} {letter}"
    return rate(per_s)


def share(part: float, whole: float) -> str:
    """Return a part of a whole in percent.

    >>> share(1, 3), share(0, 0), share(1, 1)
    ('33.3 %', '0.0 %', '100.0 %')
    """
    return f"{100 * part / whole if whole > 0 else 0:.1f} %"


def clock(seconds: float | None) -> str:
    """Return a time to wait as on a clock; without a number, a place for one.

    >>> clock(7), clock(3725), clock(None)
    ('0:07', '1:02:05', '-:--')
    """
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> plural(1, "step"), plural(1200, "step"), plural(2, "batch"), plural(3, "epoch"), plural(2, "process")
    ('1 step', '1,200 steps', '2 batches', '3 epochs', '2 processes')
    """
    ending = "" if count == 1 else "es" if noun.endswith(("tch", "ss")) else "s"
    return f"{format_count(count)} {noun}{ending}"
