"""Numbers for people: a few significant digits and a unit."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_RATES = ((1e12, "Tbps"), (1e9, "Gbps"), (1e6, "Mbps"), (1e3, "kbps"), (1.0, "bps"))
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))

Unit = tuple[float, str]


def digits(value: float, significant: int = 4) -> str:
    """Return fixed-point text with this many significant digits and commas; whole digits are never cut."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "-"
    exponent = math.floor(math.log10(abs(float(f"{value:.{significant - 1}e}"))))
    return f"{value:,.{max(0, significant - 1 - exponent)}f}"


def short(value: float, significant: int = 3) -> str:
    """Return as `digits`, without trailing zeros, for text."""
    text = digits(value, significant)
    return text.rstrip("0").rstrip(".") if "." in text else text


def _unit(value: float, units: tuple[Unit, ...]) -> Unit:
    for unit in units:
        if abs(value) >= unit[0] * 0.9995:
            return unit
    return units[-1] if value else units[0]


def time_unit(seconds: Iterable[float]) -> Unit:
    """Return the unit in which a column of times reads best: that of the median."""
    return _column_unit(seconds, _TIMES)


def rate_unit(rates: Iterable[float]) -> Unit:
    """Return the unit in which a column of rates (bit/s) reads best."""
    return _column_unit(rates, _RATES)


def _column_unit(values: Iterable[float], units: tuple[Unit, ...]) -> Unit:
    ordered = sorted(abs(value) for value in values if value)
    return _unit(ordered[len(ordered) // 2] if ordered else 0.0, units)


def in_unit(value: float, unit: Unit) -> str:
    """Return the number alone, in this unit."""
    return digits(value / unit[0])


def _with_unit(value: float, units: tuple[Unit, ...], significant: int) -> str:
    unit = _unit(value, units)
    return f"{short(value / unit[0], significant)} {unit[1]}"


def duration(seconds: float, significant: int = 3) -> str:
    """Format `0.01234` as `12.3 ms`."""
    return _with_unit(seconds, _TIMES, significant)


def durations(low_s: float, high_s: float) -> str:
    """Format a range as `97.3-153 ms`, in the unit of the longer time."""
    unit = _unit(high_s, _TIMES)
    return f"{digits(low_s / unit[0], 3)}-{digits(high_s / unit[0], 3)} {unit[1]}"


def span(low: float, high: float) -> str:
    """Format a range of numbers as `13,366-21,056`."""
    return f"{digits(low, 3)}-{digits(high, 3)}"


def rate(bits_per_s: float) -> str:
    """Format `25e9` as `25 Gbps`."""
    return _with_unit(bits_per_s, _RATES, 4)


def size(size_bytes: float, significant: int = 3) -> str:
    """Format `1.022e8` as `102 MB`."""
    return _with_unit(size_bytes, _SIZES, significant)


def gigabytes(size_bytes: float) -> str:
    """Format memory of a GPU, `48.07e9`, as `48.1`; the unit is GB."""
    return f"{size_bytes / 1e9:,.1f}" if size_bytes >= 1e9 else digits(size_bytes / 1e9, 2)


def memory(size_bytes: float) -> str:
    """Format memory of a GPU, `48.07e9`, as `48.1 GB`; what is less than 0.1 GB has its own unit."""
    return f"{gigabytes(size_bytes)} GB" if size_bytes >= 0.095e9 else size(size_bytes)


def percent(share: float, places: int = 1) -> str:
    """Format `0.7132` as `71.3%`."""
    return f"{share * 100:,.{places}f}%"


def factor(ratio: float) -> str:
    """Format how many times as much something is, `1.8512`, as `1.85x`."""
    return f"{digits(ratio, 3)}x"


def count(number: int, noun: str) -> str:
    """Format as `1 server` or `2,048 servers`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(words: Sequence[str], last: str = "and") -> str:
    """Format as `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def shown(value: object, form: Callable[[object], str] = str) -> str:
    """Return the start of a value's text, for messages; Python does not print integers of thousands of digits."""
    try:
        return form(value)[:80]
    except ValueError:
        return "a number of thousands of digits"


def printable(text: str) -> str:
    """Return text for one line of a terminal: control characters and undecodable bytes are escaped."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


_WATTS = re.compile(r"(\d{1,6}(?:\.\d{1,6})?) ?(k?)W", re.ASCII)


def watts(text: str) -> float | None:
    """Return the watts of a power such as `500W` or `1.2kW`; None for other texts."""
    match = _WATTS.fullmatch(text)
    return None if match is None else float(match[1]) * (1000 if match[2] else 1)


_BINARY = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)([kKmM])")
_SPELLED = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def spelled_count(text: str) -> int | None:
    """Return the number that an English word is, up to twelve; None for other text."""
    word = text.strip().lower()
    return _SPELLED.index(word) if word in _SPELLED else None


def binary_count(text: str) -> int | float | None:
    """Return what `32k` or `1M` is, 1,024 or 1,048,576 each; a float if it is not whole, None for other text."""
    match = _BINARY.fullmatch(text)
    if match is None:
        return None
    number = float(match[1]) * (1 << 10 if match[2] in "kK" else 1 << 20)
    return int(number) if number.is_integer() else number
