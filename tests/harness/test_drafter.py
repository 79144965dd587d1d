"""The drafter computes what the public implementations compute: their recorded hidden states and logits."""

import json
from pathlib import Path

import pytest
import torch
from drafter import Drafter, DrafterConfig
from safetensors.torch import load_file

DATA = Path(__file__).resolve().parents[1] / "data" / "drafter"
TOLERANCE = 2e-5
META = json.loads((DATA / "meta.json").read_text())


@pytest.fixture(scope="module")
def expected():
    return load_file(DATA / "expected.safetensors")


@pytest.fixture(scope="module")
def target():
    return load_file(DATA / "target_hf" / "model.safetensors")


def drafter_of(variant):
    model = Drafter(DrafterConfig.from_hf(META["variants"][variant]))
    model.load_state_dict(load_file(DATA / "draft_hf" / "model.safetensors"))
    return model.eval()


def hidden_of(model, expected, target, anchors, rows=None):
    """Blocks at `anchors` from the first `rows` rows of the recorded taps."""
    ids = expected["input_ids"]
    block = torch.full((len(anchors), model.config.block_size), model.config.mask_token_id)
    block[:, 0] = ids[anchors]
    embeds = target["model.embed_tokens.weight"][block]
    return model(model.context(expected["target_hidden_tap"][:rows]), embeds, torch.tensor(anchors))


@pytest.mark.parametrize("variant", sorted(META["variants"]))
def test_blocks_equal_the_recorded_hidden_states_and_logits(variant, expected, target):
    model = drafter_of(variant)
    with torch.no_grad():
        hidden = hidden_of(model, expected, target, META["anchors"])
    logits = hidden @ target["lm_head.weight"].T
    for index, anchor in enumerate(META["anchors"]):
        torch.testing.assert_close(hidden[index], expected[f"{variant}.a{anchor}.hidden"], atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(logits[index], expected[f"{variant}.a{anchor}.logits"], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("variant", sorted(META["variants"]))
def test_a_block_is_the_same_alone_and_in_company(variant, expected, target):
    model = drafter_of(variant)
    with torch.no_grad():
        together = hidden_of(model, expected, target, META["anchors"])
        for index, anchor in enumerate(META["anchors"]):
            alone = hidden_of(model, expected, target, [anchor], rows=anchor)
            torch.testing.assert_close(alone[0], together[index], atol=1e-5, rtol=0)


def test_gradients_reach_every_weight(expected, target):
    model = drafter_of("swa_causal_default")
    hidden_of(model, expected, target, [7, 20]).square().sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in model.parameters())


def test_the_state_dict_has_exactly_the_published_keys(expected):
    model = drafter_of("full")
    assert {name: tuple(value.shape) for name, value in model.state_dict().items()} == model.config.state_shapes()
    assert set(model.state_dict()) == set(load_file(DATA / "draft_hf" / "model.safetensors"))


@pytest.mark.parametrize("folder", ["draft_hf", "draft_hf_legacy", "draft_speculators"])
def test_every_layout_reads_as_the_same_drafter(folder):
    config = DrafterConfig.from_hf(json.loads((DATA / folder / "config.json").read_text()))
    assert (config.target_layer_ids, config.block_size, config.mask_token_id) == ((0, 1, 2), 8, 511)
    assert config.rope_theta == 1e6
    assert DrafterConfig.from_hf(config.to_hf()) == config
