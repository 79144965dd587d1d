"""Acceptance statistics: three legitimate curves, and nothing undecided mixed in."""

import pytest
from acceptance import Hits, Text, all_anchor, block_round, clean_lengths, histogram, macro, pooled, positions, walk


def hits(*runs, block=3):
    """Anchors whose drafts are right exactly for their leading run."""
    return [Hits(tuple(k < run for k in range(block)), block) for run in runs]


def test_survival_sums_to_the_acceptance_length_and_the_product_of_marginals_does_not():
    anchors = hits(3, 2, 1, 0)
    rows = positions(anchors)
    assert [row["survival"] for row in rows] == [0.75, 0.5, 0.25]
    assert 1 + sum(row["survival"] for row in rows) == all_anchor(anchors) == 2.5
    assert [row["conditional"] for row in rows] == pytest.approx([3 / 4, 2 / 3, 1 / 2])
    assert [row["n_conditional"] for row in rows] == [4, 3, 2]
    product = 0.75 * (1 + 0.5 * (1 + 0.25))
    assert 1 + product != pytest.approx(2.5)


def test_marginal_counts_right_tokens_after_a_miss():
    rows = positions([Hits((False, True), 2), Hits((True, True), 2)])
    assert [row["marginal"] for row in rows] == [0.5, 1.0]
    assert [row["survival"] for row in rows] == [0.5, 0.5]


def test_positions_past_the_text_are_not_counted():
    rows = positions([Hits((True,), 2), Hits((True, False), 2)])
    assert [row["n"] for row in rows] == [2, 1]
    assert all_anchor([Hits((True,), 2)]) is None


def test_macro_weighs_texts_and_pooled_weighs_rounds():
    lengths = [[1, 1, 1], [4]]
    assert macro(lengths) == 2.5
    assert pooled(lengths) == 1.75
    assert macro([[], [2]]) == 2
    assert macro([[]]) is None
    assert histogram(lengths) == {"1": 3, "4": 1}


def test_a_round_that_runs_into_the_end_of_the_text_is_censored():
    text = Text((9, 1, 2, 3), prompt_length=1, argmax=(1, 2, 3))
    assert block_round(1, [2, 3, 7], text.known(1, 3)).censored
    assert not block_round(1, [2, 8, 7], text.known(1, 3)).censored
    assert not block_round(1, [2, 3], text.known(1, 2)).censored


def test_a_token_that_was_not_the_targets_choice_censors_the_round_and_the_walk_goes_on_after_it():
    text = Text((0, 1, 2, 3, 4, 5, 6), prompt_length=1, argmax=(1, 2, 8, 4, 5, 6))
    assert text.known(1, 4) == (2,)
    rounds = walk(text.anchors, lambda anchor: block_round(anchor, [anchor + 1, anchor + 2], text.known(anchor, 2)))
    assert [(each.anchor, each.length, each.censored) for each in rounds] == [(1, 2, True), (3, 3, False)]
    assert clean_lengths(rounds) == [3]


def test_the_walk_starts_each_round_where_the_last_one_ended():
    text = Text(tuple(range(8)), prompt_length=2, argmax=tuple(range(2, 8)))
    drafts = {2: [3, 0], 4: [5, 6]}
    rounds = walk(text.anchors, lambda anchor: block_round(anchor, drafts[anchor], text.known(anchor, 2)))
    assert [each.length for each in rounds] == [2, 3]
