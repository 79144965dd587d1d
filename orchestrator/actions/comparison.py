"""A result against its baseline and against other results: paired by item, with a bootstrap interval over items."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev, stdev
from typing import Any

from orchestrator.measured import Difference, Estimate, ResultRule, Verdict

RESAMPLES = 2000
CONFIDENCE = 0.95
RESAMPLED = 10_000
"""items up to which a mean is resampled: about 4 s"""
QUANTILE = 1.959964
"""normal, of (1 + CONFIDENCE) / 2"""
T_QUANTILES = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Student's t, of (1 + CONFIDENCE) / 2, for 1 to 30 degrees of freedom"""
MOST_ITEMS = 1e9
"""that anybody would think of measuring"""
LARGEST = 1e100
"""of an item: sums and squares of such numbers stay finite, and what is larger measures nothing"""
SETTLING = 1.96 + 0.84
"""normal quantiles: a 95% interval that excludes zero four times out of five"""


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
    values = [one for _, one in _rows(document, rule)]
    if len(values) < 2:
        return Estimate(value=float(value))
    low, high = interval(values)
    return Estimate(value=float(value), low=low, high=high)


def items(document: Mapping[str, Any] | None, rule: ResultRule) -> dict[str, float]:
    """Item id -> value of the items that can be paired: those whose id is theirs alone.

    Empty where the job names no items, or none has a number.
    """
    rows = _rows(document, rule)
    times = Counter(name for name, _ in rows)
    return {name: value for name, value in rows if name is not None and times[name] == 1}


def unpaired(document: Mapping[str, Any] | None, rule: ResultRule) -> int:
    """How many measured items have no id, or one that another has too."""
    return len(_rows(document, rule)) - len(items(document, rule))


def missing(document: Mapping[str, Any] | None, rule: ResultRule) -> str:
    """Why the items that the job names are not there, with what is; "" where they are, or the job names none."""
    if not rule.items or items(document, rule):
        return ""
    rows = pick(document, rule.items)
    if not isinstance(rows, list) or not rows:
        what = "no list" if not isinstance(rows, list) else "no item in the list"
        return f"{what} at {rule.items} (result.items); keys there: {keys_there(document, rule.items)}"
    first = rows[0]
    if not _rows(document, rule):
        told = keys_there(first, rule.item_value)
        return f"no item of {rule.items} has a number at {rule.item_value} (result.item_value); keys there: {told}"
    told = keys_there(first, rule.item_id)
    return f"no item of {rule.items} has a {rule.item_id} of its own (result.item_id); keys there: {told}"


def keys_there(document: Any, path: str | None) -> str:
    """The keys of the last object on the way along a dotted path: what a misspelt one could have meant."""
    found = document
    for part in (path or "").split("."):
        if not isinstance(found, Mapping) or not isinstance(found.get(part), Mapping):
            break
        found = found[part]
    return ", ".join(str(key) for key in list(found)[:20]) if isinstance(found, Mapping) else "none"


def _rows(document: Mapping[str, Any] | None, rule: ResultRule) -> list[tuple[str | None, float]]:
    """(id, value) of all items with a number."""
    rows = pick(document, rule.items)
    if not isinstance(rows, list) or rule.item_value is None:
        return []
    found = []
    for row in rows:
        value = pick(row, rule.item_value)
        if is_number(value) and abs(value) < LARGEST and isinstance(row, Mapping):
            name = row.get(rule.item_id)
            found.append((None if name is None else str(name), float(value)))
    return found


def interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Percentile bootstrap (Efron 1979) of the mean over items, 2000 resamples, fixed seed, widened for few items.

    Of few items resamples spread too little: of 3, an interval of 95% would miss the mean one time in four. So its
    reach is stretched by t / z * sqrt(n / (n - 1)) (as in the expanded intervals of Hesterberg 2015, What
    Teachers Should Know About the Bootstrap).
    Past RESAMPLED items the normal distribution of the mean, which is what the resamples come to there: they would
    take minutes.
    """
    count = len(values)
    if count > RESAMPLED:
        mean, reach = fmean(values), QUANTILE * pstdev(values) / math.sqrt(count)
        return mean - reach, mean + reach
    generator = random.Random(seed)
    means = sorted(fmean(generator.choices(values, k=count)) for _ in range(RESAMPLES))
    tail = (1 - CONFIDENCE) / 2
    mean, stretch = fmean(values), widening(count)
    low, high = means[int(tail * RESAMPLES)], means[int((1 - tail) * RESAMPLES) - 1]
    return mean - stretch * (mean - low), mean + stretch * (high - mean)


def widening(count: int) -> float:
    """By how much the bootstrap's reach is stretched for `count` items: 9.2 for 2, 1.44 for 6, 1.02 for 80."""
    free = count - 1
    student = T_QUANTILES[free - 1] if free <= len(T_QUANTILES) else QUANTILE * (1 + (QUANTILE**2 + 1) / (4 * free))
    return student / QUANTILE * math.sqrt(count / free)


def paired(ours: Mapping[str, float], theirs: Mapping[str, float], better: str) -> Difference:
    """The mean paired difference over shared items with its interval, and what it says.

    Shown is a difference whose interval excludes zero; fewer than two shared items show nothing.
    """
    shared = sorted(ours.keys() & theirs.keys())
    values = [ours[name] - theirs[name] for name in shared]
    if len(values) < 2:
        estimate = Estimate(value=values[0]) if values else None
        return Difference(items=len(values), estimate=estimate, verdict=None, needed_items=None)
    low, high = interval(values)
    found: Verdict = "no_difference"
    if not low <= 0 <= high:
        found = "better" if (low > 0) == (better == "higher") else "worse"
    return Difference(
        items=len(values),
        estimate=Estimate(value=fmean(values), low=low, high=high),
        verdict=found,
        needed_items=needed_items(values) if found == "no_difference" else None,
    )


def needed_items(values: Sequence[float]) -> int | None:
    """Items at which a difference of this mean and spread would show itself with probability 0.8.

    None where no number would do. The usual size of a paired sample:
    (sum of the normal quantiles * deviation / mean)^2, rounded up.
    """
    mean = fmean(values)
    if mean == 0:
        return None
    ratio = SETTLING * stdev(values) / mean
    return max(len(values) + 1, math.ceil(ratio**2)) if abs(ratio) < MOST_ITEMS**0.5 else None
