"""Which texts go through a layer together.

Packed: texts behind one another in one row, no padding; attention is told their lengths. Padded: one text a row, padded
on the right, for layers that carry a state along the row (linear attention), which would leak from text to text.
Both need no mask: attention is causal, so nothing reads what stands to the right of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_WASTE = 0.1  # padding that a padded batch may add, once it is large enough to keep the processor busy
_ENOUGH = 256


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows [first, first + sum(lengths)) of the residuals: whole texts in the order in which they are stored."""

    first: int
    lengths: tuple[int, ...]
    packed: bool

    @property
    def rows(self) -> slice:
        return slice(self.first, self.first + sum(self.lengths))

    def to_batch(self, rows_NH: Tensor) -> Tensor:
        """The chunk's rows as a layer takes them, [1, N, H] or [B, T, H]."""
        longest = max(self.lengths)
        if self.packed:
            return rows_NH.unsqueeze(0)
        if min(self.lengths) == longest:
            return rows_NH.view(len(self.lengths), longest, -1)
        batch_BTH = rows_NH.new_zeros(len(self.lengths), longest, rows_NH.shape[1])
        for padded, text in zip(batch_BTH, rows_NH.split(self.lengths), strict=True):
            padded[: len(text)] = text
        return batch_BTH

    def from_batch(self, batch_BTH: Tensor, out_NH: Tensor) -> None:
        """Put a layer's output back into rows, without the padding."""
        if self.packed:
            out_NH.copy_(batch_BTH[0])
            return
        for text, padded in zip(out_NH.split(self.lengths), batch_BTH, strict=True):
            text.copy_(padded[: len(text)])

    @property
    def position_ids(self) -> Tensor:
        """Positions [1, N] or [B, T]; each text begins at 0."""
        if self.packed:
            return torch.cat([torch.arange(length) for length in self.lengths]).unsqueeze(0)
        return torch.arange(max(self.lengths)).expand(len(self.lengths), -1)


def chunks_of(lengths: Sequence[int], limit: int, packed: bool) -> list[Chunk]:
    """Cut texts, stored from the shortest to the longest, into chunks of at most `limit` tokens, padding included.

    A longer text is a chunk of its own.
    """
    chunks: list[Chunk] = []
    held: list[int] = []
    first = 0
    for length in lengths:
        if held and not _fits([*held, length], limit, packed):
            chunks.append(Chunk(first, tuple(held), packed))
            first += sum(held)
            held = []
        held.append(length)
    return [*chunks, Chunk(first, tuple(held), packed)] if held else chunks


def _fits(lengths: Sequence[int], limit: int, packed: bool) -> bool:
    if packed:
        return sum(lengths) <= limit
    size = len(lengths) * max(lengths)
    return size <= limit and (size <= _ENOUGH or size - sum(lengths) <= _WASTE * size)
