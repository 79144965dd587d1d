"""Better, worse, or no difference shown: from paired differences over prompts."""

import pytest
from acceptance import Hits, Round, Text
from cache import CachedPrompt
from evaluate import PromptMeasure
from hypothesis import given, settings
from hypothesis import strategies as st
from paired import compare, difference, interval, needed_items

from orchestrator.actions import comparison


def measure(name, lengths, *, tree=(), hits=None):
    def rounds(values):
        return [Round(anchor, length - 1, censored=False) for anchor, length in enumerate(values)]

    prompt = CachedPrompt(name, "", Text((1, 2), 1, (2,)), "")
    return PromptMeasure(prompt, rounds(lengths), {16: rounds(tree)}, hits or {}, 0)


def test_a_constant_lead_is_better_and_the_reverse_worse():
    ours = [measure(str(index), [3, 4], tree=[5]) for index in range(4)]
    theirs = [measure(str(index), [3, 3], tree=[5]) for index in range(4)]
    facts = compare(ours, theirs, (16,))
    assert facts["difference"] == {"value": 0.5, "low": 0.5, "high": 0.5}
    assert (facts["verdict"], facts["items"], facts["needed_items"]) == ("better", 4, None)
    assert compare(theirs, ours, (16,))["verdict"] == "worse"
    assert facts["ddtree"]["16"]["verdict"] == "no_difference"
    assert facts["ddtree"]["16"]["needed_items"] is None  # no difference at all: no number of prompts shows one


def test_a_small_difference_says_how_many_prompts_would_settle_it():
    pairs = [(2.0 + lead, 2.0) for lead in (0.5, -0.3, 0.4, -0.2)]
    facts = difference(pairs)
    assert facts["verdict"] == "no_difference"
    assert facts["difference"]["low"] < 0 < facts["difference"]["high"]
    spread = 0.408248  # of the four leads
    assert (
        facts["needed_items"] == pytest.approx((2.8 * spread / 0.1) ** 2, abs=1) == needed_items([0.5, -0.3, 0.4, -0.2])
    )


def test_prompts_undecided_under_either_drafter_are_left_out():
    ours = [measure("a", [2]), measure("b", []), measure("c", [2])]
    theirs = [measure("a", [1]), measure("b", [9]), measure("c", [1])]
    assert compare(ours, theirs, ())["items"] == 2
    one = compare(ours[:2], theirs[:2], ())
    assert (one["items"], one["verdict"], one["difference"]["value"]) == (1, None, 1.0)


def test_all_anchor_differences_are_of_the_anchors_that_both_decide():
    whole, cut = Hits((True, False), 2), Hits((True,), 2)
    ours = [measure("a", [2], hits={1: whole, 2: whole}) for _ in range(2)]
    theirs = [measure("a", [2], hits={1: Hits((False, False), 2), 2: cut}) for _ in range(2)]
    assert compare(ours, theirs, ())["all_anchor"]["difference"]["value"] == 1.0


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=2, max_size=12))
def test_the_interval_holds_the_mean_and_is_the_same_every_time(values):
    low, high = interval(values)
    assert low - 1e-9 <= sum(values) / len(values) <= high + 1e-9
    assert interval(values) == (low, high)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=2, max_size=40))
def test_the_program_alone_and_orch_give_the_same_interval_and_need_the_same_prompts(values):
    assert interval(values) == comparison.interval(values)
    assert needed_items(values) == comparison.needed_items(values)
