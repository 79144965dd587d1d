"""A row of block characters that shows how a number went."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.-:=+*#"


def sparkline(values: Sequence[float], width: int = 60, *, unicode: bool = True) -> str:
    """One character a value, from the least to the greatest; past `width` values each is the mean of several."""
    blocks = BLOCKS if unicode else ASCII_BLOCKS
    count = min(len(values), width)
    bounds = [round(index * len(values) / count) for index in range(count + 1)] if count else [0]
    means = [sum(values[start:stop]) / (stop - start) for start, stop in pairwise(bounds)]
    if not means:
        return ""
    low, span = min(means), max(means) - min(means)
    top = len(blocks) - 1
    return "".join(blocks[round((mean - low) / span * top) if span else top // 2] for mean in means)
