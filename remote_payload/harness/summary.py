"""The measures of all texts, added up into the keys of eval_results.json."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from acceptance import Round, all_anchor, clean_lengths, histogram, macro, pooled, positions
from evaluate import PromptMeasure

BUCKETS = (0, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)  # where a bucket of context lengths starts


def summarise(measures: Sequence[PromptMeasure], budgets: Sequence[int]) -> dict[str, Any]:
    """The measured facts of one drafter."""
    hits = [hit for measure in measures for hit in measure.hits.values()]
    lengths = _lengths(measures, lambda measure: measure.rounds)
    return {
        "acceptance_length": _walked(lengths) | {"all_anchor": all_anchor(hits)},
        "positions": positions(hits),
        "ddtree": _trees(measures, budgets),
        "prompts": [_prompt_facts(measure) for measure in measures],
        "near_ties": sum(measure.near_ties for measure in measures),
        "rounds": sum(len(measure.rounds) for measure in measures),
        "censored": sum(each.censored for measure in measures for each in measure.rounds),
        "anchors": len(hits),
        "histogram": histogram(lengths),
        "data_sets": _by_data_set(measures, budgets),
        "context_lengths": _by_context_length(measures, budgets),
    }


def _walked(lengths: Sequence[Sequence[int]]) -> dict[str, float | None]:
    return {"walk_macro": macro(lengths), "pooled": pooled(lengths)}


def _lengths(
    measures: Sequence[PromptMeasure], rounds_of: Callable[[PromptMeasure], list[Round]], within: range | None = None
) -> list[list[int]]:
    """Decided lengths by text; `within` keeps the rounds whose anchor lies there."""
    return [
        clean_lengths([each for each in rounds_of(measure) if within is None or each.anchor in within])
        for measure in measures
    ]


def _trees(
    measures: Sequence[PromptMeasure], budgets: Sequence[int], within: range | None = None
) -> dict[str, dict[str, float | None]]:
    return {
        str(budget): _walked(_lengths(measures, lambda measure, budget=budget: measure.tree_rounds[budget], within))
        for budget in budgets
    }


def _prompt_facts(measure: PromptMeasure) -> dict[str, Any]:
    lengths = clean_lengths(measure.rounds)
    return {
        "id": measure.prompt.id,
        "data_set": measure.prompt.data_set,
        "acceptance_length": fmean(lengths) if lengths else None,
        "all_anchor": all_anchor(list(measure.hits.values())),
        "rounds": lengths,
        "rounds_ddtree": {str(budget): clean_lengths(each) for budget, each in measure.tree_rounds.items()},
        "censored": sum(each.censored for each in measure.rounds),
        "censored_rounds": [each.length for each in measure.rounds if each.censored],
        "censored_ddtree": {
            str(budget): sum(each.censored for each in rounds) for budget, rounds in measure.tree_rounds.items()
        },
    }


def _by_data_set(measures: Sequence[PromptMeasure], budgets: Sequence[int]) -> dict[str, dict[str, Any]]:
    names = sorted({measure.prompt.data_set for measure in measures})
    return {name: _part([each for each in measures if each.prompt.data_set == name], budgets) for name in names}


def _by_context_length(measures: Sequence[PromptMeasure], budgets: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Rounds by the length of the context that they were drafted from. "512-1023" holds both ends."""
    bounds = [*pairwise(BUCKETS), (BUCKETS[-1], 1 << 62)]
    parts = {
        f"{start}-{stop - 1}" if stop < 1 << 62 else f"{start}-": _part(measures, budgets, range(start, stop))
        for start, stop in bounds
    }
    return {name: part for name, part in parts.items() if part["prompts"]}


def _part(measures: Sequence[PromptMeasure], budgets: Sequence[int], within: range | None = None) -> dict[str, Any]:
    """Of some texts, or of the anchors `within` of all."""
    lengths = _lengths(measures, lambda measure: measure.rounds, within)
    hits = [hit for each in measures for anchor, hit in each.hits.items() if within is None or anchor in within]
    return {
        "prompts": sum(map(bool, lengths)) if within is not None else len(measures),
        "rounds": sum(map(len, lengths)),
        **_walked(lengths),
        "all_anchor": all_anchor(hits),
        "ddtree": _trees(measures, budgets, within),
    }
