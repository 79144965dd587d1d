"""Two drafters on the same anchors: is the difference real, and how many prompts would tell?"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from acceptance import clean_lengths
from evaluate import PromptMeasure

RESAMPLES = 2000
CONFIDENCE = 0.95
QUANTILE = 1.959964  # normal, of (1 + CONFIDENCE) / 2
T_QUANTILES = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)  # Student's t, of (1 + CONFIDENCE) / 2, for 1 to 30 degrees of freedom
SETTLING = 1.96 + 0.84  # normal quantiles: a 95% interval that excludes zero four times out of five


def compare(ours: Sequence[PromptMeasure], theirs: Sequence[PromptMeasure], budgets: Sequence[int]) -> dict[str, Any]:
    """The paired comparison of two drafters measured on the same texts, in the keys of eval_results.json.

    Every text counts once, with the mean of its rounds under each drafter; texts that one of them leaves without a
    decided round are left out.
    """
    pairs = list(zip(ours, theirs, strict=True))
    plain = [_means(one.rounds, other.rounds) for one, other in pairs]
    trees = {
        str(budget): difference([_means(one.tree_rounds[budget], other.tree_rounds[budget]) for one, other in pairs])
        for budget in budgets
    }
    return difference(plain) | {
        "all_anchor": difference([_on_shared_anchors(*pair) for pair in pairs]),
        "ddtree": trees,
    }


def difference(pairs: Sequence[tuple[float, float] | None]) -> dict[str, Any]:
    """Mean paired difference with its bootstrap interval over prompts, the verdict, and what would settle it.

    verdict       better, worse or no_difference (the interval holds zero); None with fewer than two prompts
    needed_items  prompts at which a difference of this size would show itself with probability 0.8, taking the spread
                  among these; None where it is shown already, or where there is none to show
    """
    values = [pair[0] - pair[1] for pair in pairs if pair is not None]
    if len(values) < 2:
        value = values[0] if values else None
        return {
            "difference": {"value": value, "low": None, "high": None},
            "items": len(values),
            "verdict": None,
            "needed_items": None,
        }
    low, high = interval(values)
    verdict = "better" if low > 0 else "worse" if high < 0 else "no_difference"
    return {
        "difference": {"value": fmean(values), "low": low, "high": high},
        "items": len(values),
        "verdict": verdict,
        "needed_items": needed_items(values) if verdict == "no_difference" else None,
    }


def interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Percentile bootstrap (Efron 1979) of the mean over prompts, 2000 resamples, fixed seed, widened for few prompts.

    Of few prompts resamples spread too little: of 3, an interval of 95% would miss the mean one time in four. So its
    reach is stretched by t / z * sqrt(n / (n - 1)) (as in the expanded intervals of Hesterberg 2015, What
    Teachers Should Know About the Bootstrap).
    """
    generator = random.Random(seed)
    means = sorted(fmean(generator.choices(values, k=len(values))) for _ in range(RESAMPLES))
    tail = (1 - CONFIDENCE) / 2
    mean, free = fmean(values), len(values) - 1
    student = T_QUANTILES[free - 1] if free <= len(T_QUANTILES) else QUANTILE * (1 + (QUANTILE**2 + 1) / (4 * free))
    stretch = student / QUANTILE * math.sqrt(len(values) / free)
    low, high = means[int(tail * RESAMPLES)], means[int((1 - tail) * RESAMPLES) - 1]
    return mean - stretch * (mean - low), mean + stretch * (high - mean)


def needed_items(values: Sequence[float]) -> int | None:
    """Prompts that would settle a difference of this mean and spread: (quantiles * deviation / mean)^2, rounded up."""
    mean = fmean(values)
    if mean == 0:
        return None
    return max(len(values) + 1, math.ceil((SETTLING * stdev(values) / mean) ** 2))


def _means(ours: Any, theirs: Any) -> tuple[float, float] | None:
    lengths = [clean_lengths(rounds) for rounds in (ours, theirs)]
    return (fmean(lengths[0]), fmean(lengths[1])) if all(lengths) else None


def _on_shared_anchors(ours: PromptMeasure, theirs: PromptMeasure) -> tuple[float, float] | None:
    """Mean rounds from the anchors whose whole block the text decides for both."""
    shared = [
        (1 + hits.run, 1 + theirs.hits[anchor].run)
        for anchor, hits in ours.hits.items()
        if anchor in theirs.hits and all(len(each.right) == each.block for each in (hits, theirs.hits[anchor]))
    ]
    return (fmean(pair[0] for pair in shared), fmean(pair[1] for pair in shared)) if shared else None
