"""Measure a drafter on a hidden-state cache: draft at anchors, compare with the target's text.

Everything is computed in float32 whatever the files hold. The walks of many texts advance together: each step drafts
where they stand, and what one walk has drafted the others of its text reuse. Then the rest of the anchors is drafted
that the statistics over all anchors want. Batches are cut the same way however often a run is interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from acceptance import Hits, Round, Text
from cache import Cache, CachedPrompt
from drafting import Drafting, Outcome, Place
from journal import Journal
from loading import LoadedDrafter
from target import TargetEnds

CONTEXT_ROOM = 1 << 30  # bytes of context keys and values of the texts that advance together


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What to measure. `max_anchors` caps the anchors per text of the all-anchor statistics, never the walks."""

    budgets: tuple[int, ...] = (16, 64, 256)
    max_anchors: int | None = None
    batch: int = 64
    texts: int = 32


@dataclass(frozen=True, slots=True)
class PromptMeasure:
    """One text under one drafter. `hits` are of the sampled anchors."""

    prompt: CachedPrompt
    rounds: list[Round]
    tree_rounds: dict[int, list[Round]]
    hits: dict[int, Hits]
    near_ties: int


@dataclass(eq=False)
class Walks:
    """The walks over one text, one plain and one for each budget, with the drafts that they share."""

    index: int
    text: Text
    sample: Sequence[int]
    rounds: list[list[Round]]
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    counted: int = 0

    def positions(self) -> list[int]:
        """Where each walk stands."""
        return [rounds[-1].anchor + rounds[-1].length if rounds else self.text.anchors.start for rounds in self.rounds]

    def wanted(self) -> list[int]:
        """Anchors that the next step needs and that are not drafted yet; none when all walks have ended."""
        return sorted({anchor for anchor in self.positions() if anchor in self.text.anchors} - self.outcomes.keys())

    def advance(self) -> None:
        """Move each walk over what is drafted."""
        for walk, rounds in enumerate(self.rounds):
            while (anchor := self.positions()[walk]) in self.outcomes:
                outcome = self.outcomes[anchor]
                rounds.append((outcome.block_round(anchor), *(outcome.trees or ()))[walk])

    def newly_dealt_with(self) -> int:
        """How many more anchors are drafted, or passed over by every walk and wanted by nobody, than last time."""
        passed = range(self.text.anchors.start, min(min(self.positions()), self.text.anchors.stop))
        total = len(self.outcomes) + len(set(passed) - set(self.sample) - self.outcomes.keys())
        new, self.counted = total - self.counted, total
        return new


Advance = Callable[[int, str, bool], None]
"""Told of each step: anchors dealt with, what, and whether an earlier run did it."""


class Measuring:
    """One drafter over all texts of a cache."""

    def __init__(
        self,
        role: str,
        loaded: LoadedDrafter,
        ends: TargetEnds,
        cache: Cache,
        settings: Settings,
        journal: Journal,
        advance: Advance,
    ) -> None:
        self._role, self._settings, self._journal, self._advance = role, settings, journal, advance
        self._only_walks = not settings.budgets and settings.max_anchors == 0
        self._prompts = cache.prompts
        layer_ids = loaded.config.target_layer_ids
        self._drafting = Drafting(
            loaded,
            ends,
            [prompt.text for prompt in cache.prompts],
            lambda index: cache.taps(cache.prompts[index], layer_ids),
        )
        config = loaded.config
        self._row_bytes = 8 * config.num_layers * config.kv_heads * config.head_dim

    @torch.inference_mode()
    def run(self) -> list[PromptMeasure]:
        """Every text's measure, in the order of the cache."""
        waiting = [self._walks(index) for index in range(len(self._prompts))][::-1]
        active: list[Walks] = []
        done: dict[int, PromptMeasure] = {}
        while waiting or active:
            while waiting and self._has_room(active, waiting[-1]):
                active.append(waiting.pop())
            self._step(active)
            for walks in [each for each in active if not each.wanted()]:
                active.remove(walks)
                done[walks.index] = self._finish(walks)
        return [done[index] for index in sorted(done)]

    def _walks(self, index: int) -> Walks:
        text = self._prompts[index].text
        sample = spread(text.anchors, self._settings.max_anchors)
        return Walks(index, text, sample, [[] for _ in range(1 + len(self._settings.budgets))])

    def _has_room(self, active: Sequence[Walks], more: Walks) -> bool:
        rows = sum(len(walks.text.token_ids) for walks in [*active, more])
        return not active or (len(active) < self._settings.texts and rows * self._row_bytes <= CONTEXT_ROOM)

    def _step(self, active: Sequence[Walks]) -> None:
        """Draft once where the walks stand, and move them."""
        places = [(walks.index, anchor) for walks in active for anchor in walks.wanted()]
        by_index = {walks.index: walks for walks in active}
        self._draft(by_index, places, self._settings.budgets)

    def _finish(self, walks: Walks) -> PromptMeasure:
        rest = [(walks.index, anchor) for anchor in walks.sample if anchor not in walks.outcomes]
        self._draft({walks.index: walks}, rest, ())
        self._drafting.drop(walks.index)
        plain, *trees = walks.rounds
        return PromptMeasure(
            prompt=self._prompts[walks.index],
            rounds=plain,
            tree_rounds=dict(zip(self._settings.budgets, trees, strict=True)),
            hits={anchor: walks.outcomes[anchor].hits for anchor in walks.sample},
            near_ties=sum(walks.outcomes[each.anchor].near_tie for each in plain),
        )

    def _draft(self, by_index: dict[int, Walks], places: Sequence[Place], budgets: Sequence[int]) -> None:
        for first in range(0, len(places), self._settings.batch):
            batch = places[first : first + self._settings.batch]
            outcomes = self._journal.recall(self._role, batch)
            earlier = outcomes is not None
            if outcomes is None:
                outcomes = self._drafting.runs(batch) if self._only_walks else self._drafting.outcomes(batch, budgets)
                self._journal.add(self._role, batch, outcomes)
            for (index, anchor), outcome in zip(batch, outcomes, strict=True):
                by_index[index].outcomes[anchor] = outcome
            new = 0
            for walks in {index: by_index[index] for index, _ in batch}.values():
                walks.advance()
                new += walks.newly_dealt_with()
            self._advance(new, self._role, earlier)


def spread(anchors: range, count: int | None) -> list[int]:
    """At most `count` anchors, evenly over the text and the same for every drafter."""
    if count is None or count >= len(anchors):
        return list(anchors)
    return [anchors[index * len(anchors) // count] for index in range(count)]
