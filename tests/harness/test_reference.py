"""The harness measures what an online run of the public loops measured, on a small trained drafter."""

import json
from pathlib import Path

import pytest
import torch
from acceptance import Text, leading_run, walk
from ddtree import build_tree, tree_round
from drafter import Drafter, DrafterConfig
from drafting import Drafting
from harness_bench import ends_of
from loading import LoadedDrafter
from safetensors.torch import load_file
from target import Head
from transformers import AutoModelForCausalLM

DATA = Path(__file__).resolve().parents[1] / "data" / "drafter"
EXPECTED = json.loads((DATA / "trained_expected.json").read_text())
BUDGETS = (4, 7, 16, 64)


@pytest.fixture(scope="module")
def ends():
    return ends_of(DATA / "target_hf")


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


@pytest.fixture(scope="module")
def outcomes(loaded, ends, taps):
    """What becomes of the draft at every anchor: both texts drafted together, all budgets from one tree."""
    texts = [text_of(sequence) for sequence in EXPECTED["seqs"]]
    drafting = Drafting(loaded, ends, texts, taps.__getitem__)
    places = [(index, anchor) for index in range(len(texts)) for anchor in online_anchors()]
    with torch.inference_mode():
        return dict(zip(places, drafting.outcomes(places, BUDGETS), strict=True))


@pytest.mark.parametrize("index", range(len(EXPECTED["seqs"])))
def test_vanilla_and_all_anchor_lengths_equal_the_online_run(index, outcomes):
    sequence = EXPECTED["seqs"][index]
    rounds = {a: outcomes[index, a].block_round(a) for a in online_anchors()}
    assert [each.length for each in walk(online_anchors(), rounds.get)] == sequence["dflash_acceptance_lengths"]
    assert [each.length for each in rounds.values()] == sequence["all_anchor_accept_lengths"]


@pytest.mark.parametrize("budget", BUDGETS[1:])
@pytest.mark.parametrize("index", range(len(EXPECTED["seqs"])))
def test_tree_lengths_equal_the_online_run(index, budget, outcomes):
    online = EXPECTED["seqs"][index][f"ddtree_B{budget}"]["acceptance_lengths"]
    assert tree_walk(index, budget, outcomes) == online


def tree_walk(index, budget, outcomes):
    place = BUDGETS.index(budget)
    return [each.length for each in walk(online_anchors(), lambda a: outcomes[index, a].trees[place])]


@pytest.mark.parametrize("index", range(len(EXPECTED["seqs"])))
def test_a_budget_below_the_block_differs_only_where_the_public_loop_runs_out_of_buffer(
    index, loaded, ends, taps, outcomes
):
    """That loop's token buffer ends budget + 1 places after the token limit. With budget 4 a block of 8 at the last
    anchors doesn't fit: it is drafted with fewer masks, and taking its "last 7 rows" then takes row 0, which predicts
    nothing, as the first drafted position. All earlier rounds agree; doing the same wrong thing gives the same number.
    """
    budget, sequence = 4, EXPECTED["seqs"][index]
    online = sequence["ddtree_B4"]["acceptance_lengths"]
    offline = tree_walk(index, budget, outcomes)
    assert offline[:-1] == online[:-1]
    anchor = online_anchors().start + sum(online[:-1])
    room = online_anchors().stop + budget + 1 - anchor
    assert (offline == online) == (room >= 8) == sequence["ddtree_B4"]["offline_walk_equal"]
    if room < 8:
        assert (
            short_block_round(anchor, room, text_of(sequence), budget, loaded, ends, taps[index]).length == online[-1]
        )


def short_block_round(anchor, width, text, budget, loaded, ends, taps_SK):
    """A block cut to `width` tokens, its row 0 mistaken for a drafted position."""
    block = torch.full((1, width), loaded.config.mask_token_id)
    block[0, 0] = text.token_ids[anchor]
    with torch.inference_mode():
        hidden = loaded.model(loaded.model.context(taps_SK), ends.embed(block), torch.tensor([anchor]))
        best = loaded.head.best(hidden[0], budget)
    tree = build_tree(best.log_probs_RK.tolist(), best.ids_RK.tolist(), budget)
    return tree_round(anchor, tree, text.known(anchor, width))


def test_leading_run_counts_agreement_up_to_the_first_miss():
    assert leading_run([1, 2, 3], [1, 2, 4, 5]) == 2
    assert leading_run([1, 2], [1, 2, 3]) == 2
