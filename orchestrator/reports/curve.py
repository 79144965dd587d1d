"""A row of block characters that shows how a number went."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import isfinite

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.-:=+*#"


def sparkline(values: Sequence[float], width: int = 60, *, unicode: bool = True) -> str:
    """One character a value, from the least to the greatest; past `width` values each is the mean of several.

    Infinite ones are left out.
    """
    blocks = BLOCKS if unicode else ASCII_BLOCKS
    known = list(filter(isfinite, values))
    largest = max(map(abs, known), default=0.0) or 1.0
    shares = [value / largest for value in known]  # sums and spans of huge numbers would not stay finite
    count = min(len(shares), width)
    bounds = [round(index * len(shares) / count) for index in range(count + 1)] if count else [0]
    means = [sum(shares[start:stop]) / (stop - start) for start, stop in pairwise(bounds)]
    if not means:
        return ""
    low, span = min(means), max(means) - min(means)
    top = len(blocks) - 1
    return "".join(blocks[round((mean - low) / span * top) if span else top // 2] for mean in means)
