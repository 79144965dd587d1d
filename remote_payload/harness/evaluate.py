"""Measure a drafter on a hidden-state cache: draft at anchors, compare with the target's text, add up.

Everything is computed in float32 whatever the files hold. Drafts of one text are computed in batches and kept, so the
walks of every budget and the statistics over all anchors share them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from acceptance import (
    Hits,
    Round,
    Text,
    all_anchor,
    block_round,
    clean_lengths,
    histogram,
    macro,
    pooled,
    positions,
    walk,
)
from cache import Cache, CachedPrompt
from ddtree import build_tree, tree_round
from loading import LoadedDrafter
from target import TargetEnds
from torch import Tensor

NEAR_TIE = 1e-4  # a margin between the two best logits that another summation order might turn round


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What to measure. `max_anchors` caps the anchors per text of the all-anchor statistics, never the walks."""

    budgets: tuple[int, ...] = (16, 64)
    max_anchors: int | None = None
    batch: int = 32


@dataclass(frozen=True, slots=True)
class Draft:
    """One drafted block: the best tokens of each of its L positions, best first."""

    ids_LK: list[list[int]]
    log_probs_LK: list[list[float]]
    margins_L: list[float]

    @property
    def tokens(self) -> list[int]:
        return [ids[0] for ids in self.ids_LK]

    def near_tie(self, accepted: int) -> bool:
        """Whether a position that decided this round was a near tie."""
        return any(margin < NEAR_TIE for margin in self.margins_L[: accepted + 1])


class Drafts:
    """What a drafter drafts at the anchors of one text; computed once each, many at a time."""

    def __init__(
        self, loaded: LoadedDrafter, ends: TargetEnds, text: Text, taps_SK: Tensor, settings: Settings
    ) -> None:
        self._loaded, self._ends = loaded, ends
        self._token_ids = torch.tensor(text.token_ids)
        self._keep, self._batch = max((1, *settings.budgets)), settings.batch
        self._context = loaded.model.context_kv(loaded.model.context(taps_SK))
        self._drafts: dict[int, Draft] = {}

    def compute(self, anchors: Sequence[int]) -> None:
        """Draft at these anchors, where not yet done."""
        new = [anchor for anchor in anchors if anchor not in self._drafts]
        for first in range(0, len(new), self._batch):
            batch = new[first : first + self._batch]
            self._drafts.update(zip(batch, self._draft(torch.tensor(batch)), strict=True))

    def at(self, anchor: int) -> Draft:
        self.compute([anchor])
        return self._drafts[anchor]

    def _draft(self, anchors_N: Tensor) -> list[Draft]:
        config = self._loaded.config
        block_NB = torch.full((len(anchors_N), config.block_size), config.mask_token_id)
        block_NB[:, 0] = self._token_ids[anchors_N]
        embeds_NBH = self._ends.embed(block_NB, config.input_embedding_scale)
        seen = int(anchors_N.max())
        context = [(keys[:seen], values[:seen]) for keys, values in self._context]
        hidden_NBH = self._loaded.model.blocks(context, embeds_NBH, anchors_N)
        best = self._loaded.head.best(hidden_NBH[:, 1:].flatten(0, 1), self._keep)
        rows = (part.view(*block_NB[:, 1:].shape, *part.shape[1:]) for part in (best.ids_RK, best.log_probs_RK))
        ids, log_probs = (part.tolist() for part in rows)
        margins = best.margin_R.view(block_NB[:, 1:].shape).tolist()
        return [Draft(*parts) for parts in zip(ids, log_probs, margins, strict=True)]


@dataclass(frozen=True, slots=True)
class PromptMeasure:
    """One text under one drafter."""

    prompt: CachedPrompt
    rounds: list[Round]
    tree_rounds: dict[int, list[Round]]
    hits: list[Hits]
    near_ties: int


@torch.inference_mode()
def measure(
    loaded: LoadedDrafter, ends: TargetEnds, cache: Cache, settings: Settings, done: Callable[[CachedPrompt], None]
) -> list[PromptMeasure]:
    """Measure every text of the cache; `done` is called after each."""
    measures = []
    for prompt in cache.prompts:
        taps_SK = cache.taps(prompt, loaded.config.target_layer_ids)
        measures.append(measure_prompt(loaded, ends, prompt, taps_SK, settings))
        done(prompt)
    return measures


@torch.inference_mode()
def measure_prompt(
    loaded: LoadedDrafter, ends: TargetEnds, prompt: CachedPrompt, taps_SK: Tensor, settings: Settings
) -> PromptMeasure:
    text, count = prompt.text, loaded.config.block_size - 1
    drafts = Drafts(loaded, ends, text, taps_SK, settings)
    sample = spread(text.anchors, settings.max_anchors)
    drafts.compute(sample)

    def vanilla(anchor: int) -> Round:
        return block_round(anchor, drafts.at(anchor).tokens, text.known(anchor, count))

    def tree(anchor: int, budget: int) -> Round:
        draft = drafts.at(anchor)
        return tree_round(anchor, build_tree(draft.log_probs_LK, draft.ids_LK, budget), text.known(anchor, count))

    rounds = walk(text.anchors, vanilla)
    return PromptMeasure(
        prompt=prompt,
        rounds=rounds,
        tree_rounds={
            budget: walk(text.anchors, lambda anchor, budget=budget: tree(anchor, budget))
            for budget in settings.budgets
        },
        hits=[Hits.of(drafts.at(anchor).tokens, text.known(anchor, count)) for anchor in sample],
        near_ties=sum(drafts.at(each.anchor).near_tie(each.accepted) for each in rounds),
    )


def spread(anchors: range, count: int | None) -> list[int]:
    """At most `count` anchors, evenly over the text and the same for every drafter."""
    if count is None or count >= len(anchors):
        return list(anchors)
    return [anchors[index * len(anchors) // count] for index in range(count)]


def summarise(measures: Sequence[PromptMeasure], budgets: Sequence[int]) -> dict[str, Any]:
    """The measured facts of one drafter, in the keys of eval_results.json."""
    lengths = [clean_lengths(measure.rounds) for measure in measures]
    hits = [hit for measure in measures for hit in measure.hits]
    trees = {budget: [clean_lengths(measure.tree_rounds[budget]) for measure in measures] for budget in budgets}
    return {
        "acceptance_length": {
            "walk_macro": macro(lengths),
            "pooled": pooled(lengths),
            "all_anchor": all_anchor(hits),
        },
        "positions": positions(hits),
        "ddtree": {str(budget): {"walk_macro": macro(each), "pooled": pooled(each)} for budget, each in trees.items()},
        "prompts": [_prompt_facts(measure) for measure in measures],
        "near_ties": sum(measure.near_ties for measure in measures),
        "rounds": sum(len(measure.rounds) for measure in measures),
        "censored": sum(each.censored for measure in measures for each in measure.rounds),
        "anchors": len(hits),
        "histogram": histogram(lengths),
        "data_sets": _by_data_set(measures),
    }


def _prompt_facts(measure: PromptMeasure) -> dict[str, Any]:
    lengths = clean_lengths(measure.rounds)
    return {
        "id": measure.prompt.id,
        "data_set": measure.prompt.data_set,
        "acceptance_length": fmean(lengths) if lengths else None,
        "rounds": lengths,
        "rounds_ddtree": {str(budget): clean_lengths(each) for budget, each in measure.tree_rounds.items()},
        "censored": sum(each.censored for each in measure.rounds),
        "censored_rounds": [each.length for each in measure.rounds if each.censored],
        "censored_ddtree": {
            str(budget): sum(each.censored for each in rounds) for budget, rounds in measure.tree_rounds.items()
        },
    }


def _by_data_set(measures: Sequence[PromptMeasure]) -> dict[str, dict[str, Any]]:
    names = sorted({measure.prompt.data_set for measure in measures})
    by_name = {
        name: [clean_lengths(each.rounds) for each in measures if each.prompt.data_set == name] for name in names
    }
    return {
        name: {"prompts": len(lengths), "walk_macro": macro(lengths), "pooled": pooled(lengths)}
        for name, lengths in by_name.items()
    }
