"""The harness measures what an online run of the public loops measured, on a small trained drafter."""

import json
from pathlib import Path

import pytest
import torch
from acceptance import Text, block_round, leading_run, walk
from cache import CachedPrompt
from ddtree import build_tree, tree_round
from drafter import Drafter, DrafterConfig
from evaluate import Drafts, Settings, measure_prompt
from loading import LoadedDrafter
from safetensors.torch import load_file
from target import Head, load_ends
from transformers import AutoModelForCausalLM

DATA = Path(__file__).resolve().parents[1] / "data" / "drafter"
EXPECTED = json.loads((DATA / "trained_expected.json").read_text())
BUDGETS = (4, 7, 16, 64)


@pytest.fixture(scope="module")
def ends():
    return load_ends(DATA / "target_hf")


@pytest.fixture(scope="module")
def loaded(ends):
    config = DrafterConfig.from_hf(json.loads((DATA / "draft_hf" / "config.json").read_text()))
    model = Drafter(config)
    model.load_state_dict(load_file(DATA / "trained_draft.safetensors"))
    file = DATA / "trained_draft.safetensors"
    return LoadedDrafter(config, model.eval(), Head.of_target(ends, config), file, "", None)


@pytest.fixture(scope="module")
def taps():
    """Taps of both recorded texts, layers 0, 1, 2."""
    model = AutoModelForCausalLM.from_pretrained(DATA / "target_hf", dtype=torch.float32)
    found = []
    for sequence in EXPECTED["seqs"]:
        with torch.no_grad():
            states = model(torch.tensor([sequence["greedy_ids"]]), output_hidden_states=True).hidden_states
        found.append(torch.cat([states[layer + 1][0] for layer in (0, 1, 2)], dim=-1))
    return found


def text_of(sequence):
    ids, start = sequence["greedy_ids"], EXPECTED["prompt_len"]
    return Text(tuple(ids), start, tuple(ids[start:]))


def online_anchors():
    """Where the online run could start a round: it stopped at the token limit; the text goes on after it."""
    return range(EXPECTED["prompt_len"], EXPECTED["prompt_len"] + EXPECTED["max_new_tokens"])


@pytest.mark.parametrize("index", range(len(EXPECTED["seqs"])))
def test_vanilla_and_all_anchor_lengths_equal_the_online_run(index, loaded, ends, taps):
    sequence = EXPECTED["seqs"][index]
    text = text_of(sequence)
    with torch.inference_mode():
        drafts = Drafts(loaded, ends, text, taps[index], Settings())
        drafts.compute(online_anchors())
    rounds = {a: block_round(a, drafts.at(a).tokens, text.known(a, 7)) for a in online_anchors()}
    assert [each.length for each in walk(online_anchors(), rounds.get)] == sequence["dflash_acceptance_lengths"]
    assert [each.length for each in rounds.values()] == sequence["all_anchor_accept_lengths"]


@pytest.mark.parametrize("budget", BUDGETS[1:])
@pytest.mark.parametrize("index", range(len(EXPECTED["seqs"])))
def test_tree_lengths_equal_the_online_run(index, budget, loaded, ends, taps):
    assert tree_walk(index, budget, loaded, ends, taps) == EXPECTED["seqs"][index][f"ddtree_B{budget}"][
        "acceptance_lengths"
    ]


def tree_walk(index, budget, loaded, ends, taps, block_end=None):
    text = text_of(EXPECTED["seqs"][index])
    with torch.inference_mode():
        drafts = Drafts(loaded, ends, text, taps[index], Settings(budgets=(budget,)))
        drafts.compute(online_anchors())

    def round_at(anchor):
        draft = drafts.at(anchor)
        return tree_round(anchor, build_tree(draft.log_probs_LK, draft.ids_LK, budget), text.known(anchor, 7))

    return [each.length for each in walk(online_anchors(), round_at)]
