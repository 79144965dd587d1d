"""Words of the files -> values: sizes (bytes), durations (seconds), GPU ranges, switches. A refusal is a ValueError."""

from __future__ import annotations

import re

SIZE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
HIGHEST_GPU = 1023
LONGEST = 10 * 365 * 86400.0
"""seconds: a longer duration is a slip of the pen, and would overflow timers"""
LARGEST = 2**63 - 1

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?: ?([A-Za-z]+))?")
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(ms|min|[smhd])")
_DURATION = re.compile(rf"(?:{_DURATION_PART.pattern} ?)+")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_RANGE = re.compile(r"([0-9]{1,6})(?:\s*-\s*([0-9]{1,6}))?")


def yes_or_no(text: str) -> bool:
    """A switch: true, yes, on; false, no, off."""
    if text.lower() not in ("true", "yes", "on", "false", "no", "off"):
        raise ValueError("true or false")
    return text.lower() in ("true", "yes", "on")


def whole_number(text: str) -> int:
    """A decimal whole number. Octal-looking (010), hexadecimal and grouped (1_000) numbers are refused, not guessed."""
    if not re.fullmatch(r"[0-9]+", text, re.ASCII) or (len(text) > 1 and text[0] == "0"):
        raise ValueError("a whole number")
    if len(text) > 18:
        raise ValueError("a whole number of at most 18 digits")
    return int(text)


def size(text: str) -> int:
    """Bytes of `60GiB`, `512 MiB`, `1.5GB` or plain `1048576`. KB, MB, GB are powers of 1000; KiB, MiB, GiB of 1024."""
    found = _SIZE.fullmatch(text)
    unit = SIZE_UNITS.get((found[2] or "").lower()) if found else None
    if not found or unit is None:
        raise ValueError("a size like 60GiB, 512MiB or a number of bytes")
    amount = int(found[1]) * unit if found[1].isdigit() else round(float(found[1]) * unit)
    if not 0 < amount <= LARGEST:
        raise ValueError("a size above zero and below 8 EiB")
    return amount


def duration(text: str) -> float:
    """Seconds of `6h`, `90s`, `1h30m`, `250ms` or plain `90`. A clock-like 1:30 is refused: it has two readings."""
    if _NUMBER.fullmatch(text):
        seconds = float(text)
    else:
        parts = _DURATION_PART.findall(text)
        if not _DURATION.fullmatch(text):
            raise ValueError("a duration like 6h, 90s or 1h30m")
        if len({unit for _, unit in parts}) != len(parts):
            raise ValueError("a duration that names each unit once, like 1h30m")
        seconds = sum(float(number) * DURATION_UNITS[unit] for number, unit in parts)
    if not 0 < seconds <= LONGEST:
        raise ValueError("a duration above zero and below ten years")
    return seconds


def gpu_range(text: str) -> tuple[int, ...]:
    """GPU indices of `0-4`, `5,7`, `0-2,6` or `3`, in the order written."""
    indices: list[int] = []
    for part in text.split(","):
        found = _RANGE.fullmatch(part.strip())
        if not found:
            raise ValueError("GPU numbers like 0-4 or 5,7")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise ValueError(f"GPU numbers that rise, like {last}-{first}")
        if last > HIGHEST_GPU:
            raise ValueError(f"GPU numbers up to {HIGHEST_GPU}")
        indices.extend(range(first, last + 1))
    if len(set(indices)) != len(indices):
        raise ValueError("each GPU number once")
    return tuple(indices)
