"""Does a drafter score higher with a convention changed? Then its configuration is not what it was trained with.

A wrong layer, theta, mask or mask token loads cleanly and costs anything from a few percent to nearly all of the
acceptance; nothing but the score shows it. So a few anchors are drafted again with each convention changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

import torch
from acceptance import leading_run
from cache import Cache
from drafter import Drafter
from drafter_config import FULL, DrafterConfig
from drafting import Drafting, Place
from evaluate import spread
from loading import LoadedDrafter
from target import TargetEnds

ANCHORS = 32  # for a first look at every mutant
MORE = 96  # for those that the first look leaves open
THETAS = (1e4, 5e5, 1e6, 5e6, 1e7)
MASKS = (151669, 248070, 248077)
DEVIATIONS = 3.0  # standard errors by which a mutant must lead
LEAD = 0.05  # and tokens


@dataclass(frozen=True, slots=True)
class Mutant:
    """A drafter with one convention changed. Row `shift` + k of its block is read as the token at anchor + k."""

    name: str
    config: DrafterConfig
    shift: int = 0
    positions: int = 0
    """How far the context is moved against the block."""


def mutants(config: DrafterConfig, cached_layers: Sequence[int], vocabulary: int, layers: int) -> Iterator[Mutant]:
    """What could be wrong with this configuration and still load."""
    for shift in (1, -1):
        ids = tuple(layer + shift for layer in config.target_layer_ids)
        if set(ids) <= set(cached_layers) and max(ids) < layers - 1:
            yield Mutant(f"target_layer_ids {list(ids)}", replace(config, target_layer_ids=ids))
    thetas = dict.fromkeys((*THETAS, config.rope_theta * 10, config.rope_theta / 10))
    for theta in thetas:
        if theta != config.rope_theta:
            yield Mutant(f"rope_theta {theta:g}", replace(config, rope_theta=theta))
    causal = [config.causal(layer) for layer in range(config.num_layers)]
    for value, name in ((True, "causal"), (False, "not causal")):
        if causal != [value] * config.num_layers:
            yield Mutant(f"block {name} in every layer", replace(config, is_causal=value))
    if config.sliding_window is not None:
        every = (FULL,) * config.num_layers
        yield Mutant(
            "no sliding window", replace(config, layer_types=every, sliding_window=None, is_causal=config.is_causal)
        )
    masks = dict.fromkeys((config.mask_token_id + 1, config.mask_token_id - 1, vocabulary - 1, 0, *MASKS))
    for mask in masks:
        if mask != config.mask_token_id and 0 <= mask < vocabulary:
            yield Mutant(f"mask_token_id {mask}", replace(config, mask_token_id=mask))
    yield Mutant("anchor first: row k drafts the token after position anchor + k", config, shift=-1)
    yield Mutant("row k drafts the token before position anchor + k", config, shift=1)
    for by in (1, -1):
        yield Mutant(f"context {'later' if by > 0 else 'earlier'} by one position", config, positions=by)


@torch.inference_mode()
def check(
    loaded: LoadedDrafter, ends: TargetEnds, cache: Cache, batch: int, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Score the drafter and its mutants on a few anchors; the mutants that score clearly higher are `suspects`."""
    config = loaded.config
    places = spread_places(cache, ANCHORS + MORE)
    few, more = places[:: max(1, len(places) // ANCHORS)], places
    if not places:
        return {"anchors": 0, "acceptance_length": None, "mutants": [], "suspects": []}
    scorer = _Scorer(loaded, ends, cache, batch)
    as_configured = Mutant("as configured", config)
    own = scorer.runs(as_configured, few)
    whole: list[int] | None = None
    rows = []
    for mutant in mutants(config, cache.target_layer_ids, ends.vocab_size, cache.manifest["target"]["num_layers"]):
        tell(mutant.name)
        runs, base = scorer.runs(mutant, few), own
        if fmean(runs) > fmean(own) and len(more) > len(few):
            whole = whole or scorer.runs(as_configured, more)
            runs, base = scorer.runs(mutant, more), whole
        rows.append({"name": mutant.name, "acceptance_length": 1 + fmean(runs), **_lead(runs, base)})
    own = whole or own
    return {
        "anchors": len(own),
        "acceptance_length": 1 + fmean(own),
        "mutants": rows,
        "suspects": [row["name"] for row in rows if row["clearly_higher"]],
    }


def _lead(runs: Sequence[int], base: Sequence[int]) -> dict[str, Any]:
    """How far a mutant is ahead on the same anchors, and whether chance could explain it."""
    leads = [mutant - own for mutant, own in zip(runs, base, strict=True)]
    lead = fmean(leads)
    error = stdev(leads) / len(leads) ** 0.5 if len(leads) > 1 else float("inf")
    return {"lead": lead, "anchors": len(leads), "clearly_higher": lead > max(LEAD, DEVIATIONS * error)}


def spread_places(cache: Cache, count: int) -> list[Place]:
    """About `count` anchors with a decided successor, evenly over all texts; at least one of a text, of up to 16."""
    texts = spread(range(len(cache.prompts)), 16)
    each = max(1, count // len(texts))
    return [
        (index, anchor)
        for index in texts
        for anchor in spread(cache.prompts[index].text.anchors, each)
        if cache.prompts[index].text.known(anchor, 1)
    ]


class _Scorer:
    """Drafts with a mutant's conventions and a drafter's weights."""

    def __init__(self, loaded: LoadedDrafter, ends: TargetEnds, cache: Cache, batch: int) -> None:
        self._loaded, self._ends, self._cache, self._batch = loaded, ends, cache, batch

    def runs(self, mutant: Mutant, places: Sequence[Place]) -> list[int]:
        """Accepted tokens at each place."""
        with torch.device("meta"):
            model = Drafter(mutant.config)
        model.load_state_dict(self._loaded.model.state_dict(), assign=True)
        cache, texts = self._cache, [prompt.text for prompt in self._cache.prompts]
        drafting = Drafting(
            replace(self._loaded, config=mutant.config, model=model.eval()),
            self._ends,
            texts,
            lambda index: cache.taps(cache.prompts[index], mutant.config.target_layer_ids),
            first=mutant.positions,
        )
        found = []
        for first in range(0, len(places), self._batch):
            batch = places[first : first + self._batch]
            drafted = drafting.tokens(batch)
            for index in {index for index, _ in batch} - {batch[-1][0]}:
                drafting.drop(index)
            for (index, anchor), row in zip(batch, drafted, strict=True):
                tokens = row[1 + mutant.shift :]
                known = texts[index].known(anchor, len(row) - 1)
                found.append(leading_run(tokens, known))
        return found
