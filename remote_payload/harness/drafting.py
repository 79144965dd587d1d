"""Draft at anchors of many texts in one pass, and keep of each draft only what became of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from acceptance import Hits, Round, Text, block_round
from ddtree import build_tree, tree_rounds
from drafter import ContextKV
from loading import LoadedDrafter
from target import TargetEnds
from torch import Tensor

NEAR_TIE = 1e-4  # a margin between the two best logits that another summation order might turn round
FEW = 4  # rows of a block whose logits are computed before the others: most runs end there

Place = tuple[int, int]
"""Index of a text, anchor in it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the draft at one anchor. `trees` holds a round for each budget, where trees were built."""

    hits: Hits
    near_tie: bool
    trees: tuple[Round, ...] | None

    def block_round(self, anchor: int) -> Round:
        run = self.hits.run
        return Round(anchor, run, censored=run == len(self.hits.right) < self.hits.block)

    def to_json(self) -> list[Any]:
        trees = None if self.trees is None else [[tree.accepted, tree.censored] for tree in self.trees]
        return ["".join("01"[right] for right in self.hits.right), self.hits.block, self.near_tie, trees]

    @classmethod
    def from_json(cls, anchor: int, value: Sequence[Any]) -> Outcome:
        right, block, near_tie, trees = value
        rounds = None if trees is None else tuple(Round(anchor, *tree) for tree in trees)
        return cls(Hits(tuple(bit == "1" for bit in right), block), near_tie, rounds)


class Drafting:
    """One drafter at work on several texts. The context of a text is computed when first read, until it is dropped."""

    def __init__(
        self,
        loaded: LoadedDrafter,
        ends: TargetEnds,
        texts: Sequence[Text],
        taps_of: Callable[[int], Tensor],
        first: int = 0,
    ) -> None:
        """`first` is the position of a context's first row: not 0 only to see what a wrong one does."""
        self.config, self._first = loaded.config, first
        self._loaded, self._ends, self._texts, self._taps_of = loaded, ends, texts, taps_of
        self._contexts: dict[int, ContextKV] = {}

    def outcomes(self, places: Sequence[Place], budgets: Sequence[int]) -> list[Outcome]:
        """Draft at places (those of one text next to each other); `budgets` are of the trees, rising."""
        length = self.config.block_size - 1
        hidden_NLH = self.hidden(places)[:, 1:]
        best = self._loaded.head.best(hidden_NLH.flatten(0, 1), max((1, *budgets)), normalised=bool(budgets))
        parts = (part.view(len(places), length, -1) for part in (best.ids_RK, best.log_probs_RK, best.margin_R))
        return [
            self._outcome(place, *draft, budgets) for place, *draft in zip(places, *map(_lists, parts), strict=True)
        ]

    def runs(self, places: Sequence[Place]) -> list[Outcome]:
        """What became of the leading run alone: the head is applied to a few rows, then where they were all right.

        For walks without trees whose anchors nobody else wants; `hits` end at the first miss.
        """
        length = self.config.block_size - 1
        hidden_NLH = self.hidden(places)[:, 1:]
        known = [self._texts[index].known(anchor, length) for index, anchor in places]
        right: list[list[bool]] = [[] for _ in places]
        margins: list[list[float]] = [[] for _ in places]
        going, start = list(range(len(places))), 0
        while going and start < length:
            stop = min(length, start + FEW) if start == 0 else length
            best = self._loaded.head.best(hidden_NLH[going, start:stop].flatten(0, 1), 1, normalised=False)
            tokens = best.ids_RK.view(len(going), -1).tolist()
            found = best.margin_R.view(len(going), -1).tolist()
            for row, drafted, margin in zip(going, tokens, found, strict=True):
                right[row] += [token == true for token, true in zip(drafted, known[row][start:stop], strict=False)]
                margins[row] += margin
            going = [row for row in going if len(known[row]) > stop and all(right[row])]
            start = stop
        hits = [Hits(tuple(each), length) for each in right]
        return [Outcome(hit, _near_tie(margin, hit.run), None) for hit, margin in zip(hits, margins, strict=True)]

    def tokens(self, places: Sequence[Place]) -> list[list[int]]:
        """The best token of every row of the blocks, row 0 too."""
        best = self._loaded.head.best(self.hidden(places).flatten(0, 1), 1, normalised=False)
        return best.ids_RK.view(len(places), -1).tolist()

    def hidden(self, places: Sequence[Place]) -> Tensor:
        """hidden_NBH of the blocks at places."""
        config = self.config
        counts = [(index, len(list(same))) for index, same in groupby(index for index, _ in places)]
        block_NB = torch.full((len(places), config.block_size), config.mask_token_id)
        block_NB[:, 0] = torch.tensor([self._texts[index].token_ids[anchor] for index, anchor in places])
        return self._loaded.model.blocks(
            [self._context(index) for index, _ in counts],
            [count for _, count in counts],
            self._ends.embed(block_NB, config.input_embedding_scale),
            torch.tensor([anchor for _, anchor in places]),
        )

    def drop(self, index: int) -> None:
        """Free the context of a text that is done."""
        self._contexts.pop(index, None)

    def _context(self, index: int) -> ContextKV:
        if index not in self._contexts:
            model = self._loaded.model
            self._contexts[index] = model.context_kv(model.context(self._taps_of(index)), self._first)
        return self._contexts[index]

    def _outcome(
        self,
        place: Place,
        ids_LK: list[list[int]],
        log_probs_LK: list[list[float]],
        margins_L1: list[list[float]],
        budgets: Sequence[int],
    ) -> Outcome:
        index, anchor = place
        draft = [ids[0] for ids in ids_LK]
        known = self._texts[index].known(anchor, len(draft))
        accepted = block_round(anchor, draft, known).accepted
        near_tie = _near_tie([margin for (margin,) in margins_L1], accepted)
        trees = None
        if budgets:
            trees = tree_rounds(anchor, build_tree(log_probs_LK, ids_LK, budgets[-1]), budgets, known)
        return Outcome(Hits.of(draft, known), near_tie, trees)


def _near_tie(margins_L: Sequence[float], accepted: int) -> bool:
    """Whether a position that decided the round was a near tie."""
    return any(margin < NEAR_TIE for margin in margins_L[: accepted + 1])


def _lists(part: Tensor) -> list[Any]:
    return part.tolist()
