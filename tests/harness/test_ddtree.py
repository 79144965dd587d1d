"""Trees are the paper's: the worked example, its walks, and the public builder on random logits."""

import json
import math
from pathlib import Path

import pytest
import torch
from ddtree import build_tree, tree_round
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from target import Head

DATA = Path(__file__).resolve().parents[1] / "data" / "drafter"
CASES = json.loads((DATA / "ddtree.json").read_text())


def tree_of(logits_LV, budget):
    """Build from logits through the same top-K and normalisation as an evaluation."""
    width = logits_LV.shape[1]
    best = Head(torch.eye(width)).best(logits_LV, budget)
    return build_tree(best.log_probs_RK.tolist(), best.ids_RK.tolist(), budget)


def public_prefixes(case):
    found = [()]
    for token, parent in zip(case["tok"], case["par"][1:], strict=True):
        found.append((*found[parent], token))
    return found[1:]


@pytest.mark.parametrize("case", CASES["example"], ids=lambda case: f"budget {case['budget']}")
def test_worked_example(case):
    tree = tree_of(torch.tensor(case["probs"]).log(), case["budget"])
    assert set(tree.prefixes()) == {tuple(prefix) for prefix in case["prefixes"]}
    assert sum(map(math.exp, tree.log_probs)) == pytest.approx(case["surrogate_E_alpha"], abs=1e-5)
    ordered = sorted(zip(tree.prefixes(), tree.log_probs, strict=True), key=lambda node: -node[1])
    recorded = sorted(case["prefix_probs"], reverse=True)
    assert [math.exp(score) for _, score in ordered] == pytest.approx(recorded, abs=1e-5)


@pytest.mark.parametrize("walk", CASES["walks_budget6"], ids=lambda walk: str(walk["accepted_indices"]))
def test_walks_of_the_worked_example(walk):
    example = next(case for case in CASES["example"] if case["budget"] == 6)
    tree = tree_of(torch.tensor(example["probs"]).log(), 6)
    # The text that the target's choices along the accepted path spell.
    text = [walk["posterior_per_node"][node] for node in walk["accepted_indices"]]
    assert tree_round(0, tree, text).length == walk["acceptance_length_incl_root_or_bonus"]


@pytest.mark.parametrize("index", range(len(CASES["fuzz"])))
def test_trees_equal_the_public_builder_but_for_equal_probabilities(index):
    case = CASES["fuzz"][index]
    logits = load_file(DATA / "ddtree_logits.safetensors")[f"case{index}"]
    tree = tree_of(logits, case["B"])
    scores = logits.double().log_softmax(-1)

    def score(prefix):
        return sum(float(scores[depth, token]) for depth, token in enumerate(prefix))

    ours, theirs = set(tree.prefixes()), set(public_prefixes(case))
    assert len(tree.tokens) == case["n"]
    assert sorted(map(score, ours - theirs)) == pytest.approx(sorted(map(score, theirs - ours)), abs=1e-5)
    assert sum(map(math.exp, map(score, ours))) == pytest.approx(sum(map(math.exp, map(score, theirs))), abs=1e-6)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 4), st.integers(2, 5), st.integers(1, 30), st.integers(0, 10_000))
def test_no_set_of_prefixes_is_more_probable(depth, width, budget, seed):
    logits = torch.randn(depth, width, generator=torch.Generator().manual_seed(seed))
    tree = tree_of(logits, budget)
    scores = logits.double().softmax(-1)
    every = [1.0]
    best = []
    for row in scores:
        every = [above * float(each) for above in every for each in row]
        best += every
    best = sorted(best, reverse=True)[:budget]
    assert sum(map(math.exp, tree.log_probs)) == pytest.approx(sum(best), rel=1e-4)
    assert len(tree.tokens) == len(best)
    assert {prefix[:-1] for prefix in tree.prefixes()} <= {(), *tree.prefixes()}


def test_a_round_is_censored_only_if_the_tree_goes_on_where_the_text_ends():
    tree = build_tree([[-0.1, -3.0], [-0.1, -3.0]], [[5, 6], [7, 8]], 3)
    assert tree.prefixes() == [(5,), (5, 7), (6,)]
    assert tree_round(0, tree, [5]).censored
    assert not tree_round(0, tree, [6]).censored
    assert not tree_round(0, tree, [9]).censored
    assert tree_round(0, tree, []).censored
