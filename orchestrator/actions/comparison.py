"""A result against its baseline and against earlier steps: paired by item, with a bootstrap interval over items."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Literal

from orchestrator.model import Estimate, ResultRule

RESAMPLES = 2000
CONFIDENCE = 0.95
Verdict = Literal["better", "worse", "no_difference"]


def pick(document: Any, path: str | None) -> Any:
    """The value at a dotted path, or None where there is none."""
    for part in (path or "").split(".") if path else ():
        if not isinstance(document, Mapping) or part not in document:
            return None
        document = document[part]
    return document if path else None


def is_number(value: Any) -> bool:
    """A finite number: true, NaN and infinity are none, nor is an integer past the range of floats."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def headline(document: Mapping[str, Any] | None, rule: ResultRule) -> Estimate | None:
    """The headline number with the 95% bootstrap interval of its items' mean; no interval without items."""
    value = pick(document, rule.headline)
    if not is_number(value):
        return None
    values = list(items(document, rule).values())
    if len(values) < 2:
        return Estimate(value=float(value))
    low, high = interval(values)
    return Estimate(value=float(value), low=low, high=high)


def items(document: Mapping[str, Any] | None, rule: ResultRule) -> dict[str, float]:
    """Item id -> value; empty where the job names no items, or none has a number."""
    rows = pick(document, rule.items)
    if not isinstance(rows, list) or rule.item_value is None:
        return {}
    found = {}
    for row in rows:
        value = pick(row, rule.item_value)
        if is_number(value) and isinstance(row, Mapping):
            found[str(row.get(rule.item_id))] = float(value)
    return found


def interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Percentile bootstrap (Efron 1979) of the mean over items, 2000 resamples, fixed seed."""
    generator = random.Random(seed)
    count = len(values)
    means = sorted(fmean(generator.choices(values, k=count)) for _ in range(RESAMPLES))
    tail = (1 - CONFIDENCE) / 2
    return means[int(tail * RESAMPLES)], means[int((1 - tail) * RESAMPLES) - 1]


def verdict(ours: Mapping[str, float], theirs: Mapping[str, float], better: str) -> Verdict | None:
    """Whether the paired mean difference over shared items excludes zero; None with fewer than two shared items."""
    shared = sorted(ours.keys() & theirs.keys())
    if len(shared) < 2:
        return None
    low, high = interval([ours[name] - theirs[name] for name in shared])
    if low <= 0 <= high:
        return "no_difference"
    return "better" if (low > 0) == (better == "higher") else "worse"
