"""Numbers, rates and times as training logs write them. Pure functions."""

import math
import re
from datetime import date
from typing import Any, Optional, Tuple

_UNITS = {
    "tok/s": ("tok/s", "toks/s", "token/s", "tokens/s", "tok/sec", "tokens/sec", "tokens per second", "tps", "t/s"),
    "samples/s": (
        "samples/s",
        "sample/s",
        "samples/sec",
        "samplespersec",
        "samples per second",
        "sequences/s",
        "seq/s",
    ),
    "it/s": ("it/s", "iter/s", "iters/s", "iterations/s", "steps/s", "step/s", "batches/s", "batch/s", "steps/sec"),
    "s/it": ("s/it", "s/iter", "s/step", "sec/step", "s/batch"),
}
_UNIT_NAMES = {spelling: unit for unit, spellings in _UNITS.items() for spelling in spellings}
_SCALE = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}


def number(text: Any) -> Optional[float]:
    """`19,500`, `19.5K`, `2.31E+00` or a number; None for anything else. nan and inf are numbers here."""
    if isinstance(text, bool) or text is None:
        return None
    if isinstance(text, (int, float)):
        return float(text)
    word = str(text).strip().replace(",", "").replace("_", "")
    scale = _SCALE.get(word[-1:], 0.0) if word[-1:].isalpha() and word[:1] not in ("n", "i") else 1.0
    if scale != 1.0:
        word = word[:-1]
    try:
        return float(word) * scale if scale else None
    except ValueError:
        return None


def whole(text: Any) -> Optional[int]:
    """A step number, or None; fractions and negative numbers are none."""
    value = number(text)
    if value is None or not math.isfinite(value) or value < 0 or value != int(value):
        return None
    return int(value)


def rate_of(value: Any, unit: Any) -> Tuple[Optional[float], Optional[str]]:
    """A rate in plain units: (19.5, "K tok/s") -> (19500.0, "tok/s"); seconds a step become steps a second."""
    rate = number(value)
    if rate is None or not math.isfinite(rate):
        return None, None
    spelled = str(unit or "").strip()
    name = _UNIT_NAMES.get(spelled.lower())
    if name is None and spelled[:1] in _SCALE and _UNIT_NAMES.get(spelled[1:].strip().lower()):
        rate *= _SCALE[spelled[:1]]
        name = _UNIT_NAMES[spelled[1:].strip().lower()]
    if name == "s/it":
        return (1 / rate, "it/s") if rate > 0 else (None, None)
    return rate, name or spelled[:20] or None


def line_clock(line: str) -> Optional[float]:
    """Seconds of the first date and time in the line, in whatever zone the log uses; or None."""
    found = _ISO.search(line)
    if found:
        year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
        fraction = found.group(7)
    else:
        found = _AMERICAN.search(line)
        if not found:
            return None
        month, day, year, hour, minute, second = (int(part) for part in found.groups())
        fraction = None
    try:
        days = date(year, month, day).toordinal()
    except ValueError:
        return None
    return days * 86_400.0 + hour * 3600 + minute * 60 + second + float("0." + (fraction or "0"))


_ISO = re.compile(r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_AMERICAN = re.compile(r"(\d\d)/(\d\d)/(\d{4}) (\d\d):(\d\d):(\d\d)")
