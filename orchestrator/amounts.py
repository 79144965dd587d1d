"""Numbers as people read them: bytes, counts and times with three digits at most."""

from __future__ import annotations

_COUNTS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K"))
_UNITS_1000 = ("B", "kB", "MB", "GB", "TB", "PB")
_UNITS_1024 = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
MANY = 1e6
"""from which on a measured number is given by its power of ten"""
MINUTE, HOUR, DAY = 60, 3600, 86400


def size(count: int | float) -> str:
    """Bytes of a file or transfer in powers of 1000: `3.75 GB`."""
    return _scaled(count, 1000, _UNITS_1000)


def memory(count: int | float) -> str:
    """Bytes of memory in powers of 1024, as the files give them: `60 GiB`."""
    return _scaled(count, 1024, _UNITS_1024)


def throughput(bytes_per_second: float) -> str:
    """`112 MB/s`."""
    return f"{size(bytes_per_second)}/s"


def count(number: float) -> str:
    """`19.5K`, `1.2M`, `987`, `0.25`: three digits at most, and no trailing zeros."""
    for factor, letter in _COUNTS:
        if abs(number) >= factor * 0.9995:
            return f"{_three_digits(number / factor)}{letter}"
    return _three_digits(number)


def duration(seconds: float) -> str:
    """`250 ms`, `12 s`, `3 min 20 s`, `1 h 05 min`, `2 d 03 h`; a negative one has its sign."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms" if seconds else "0 s"
    if seconds < 9.95:
        return f"{_trimmed(f'{seconds:.1f}')} s"
    whole = round(seconds)
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return f"{whole // MINUTE} min {whole % MINUTE:02d} s"
    minutes = round(seconds / MINUTE)
    if minutes < DAY // MINUTE:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(seconds / HOUR)
    return f"{hours // 24} d {hours % 24:02d} h"


def decimal(number: float, sign: str = "") -> str:
    """A measured number: `3.512`, from a million on `1.235e+06`; with the sign `+`, `+0.098`."""
    return f"{number:{sign}.3f}" if abs(number) < MANY else f"{number:{sign}.4g}"


def ago(seconds: float) -> str:
    """`12 s ago`. Less than a second, or a clock that is ahead by less than a minute, is `just now`."""
    if -MINUTE < seconds < 1:
        return "just now"
    return f"{duration(seconds)} ago" if seconds > 0 else f"in {duration(-seconds)}"


def _scaled(number: float, base: int, units: tuple[str, ...]) -> str:
    scaled, last = float(number), len(units) - 1
    for position, unit in enumerate(units):
        if abs(scaled) < base * 0.9995 or position == last:
            return f"{_three_digits(scaled)} {unit}"
        scaled /= base
    raise AssertionError("the last unit always fits")


def _three_digits(number: float) -> str:
    magnitude = abs(number)
    if magnitude >= 99.95:
        return f"{number:.0f}"
    return _trimmed(f"{number:.1f}" if magnitude >= 9.995 else f"{number:.2f}")


def _trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text
