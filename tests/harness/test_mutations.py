"""A convention that the configuration has wrong is named, and a right configuration is left in peace."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cache import TAPS, file_facts, load_cache, save_ends, save_taps
from drafter import Drafter
from drafter_config import SLIDING, DrafterConfig
from harness_bench import drafter_config, ends_of
from loading import LoadedDrafter
from mutations import check, mutants
from safetensors.torch import load_file
from table import suspicion
from target import Head
from transformers import AutoModelForCausalLM

DATA = Path(__file__).resolve().parents[1] / "data" / "drafter"
EXPECTED = json.loads((DATA / "trained_expected.json").read_text())
HIDDEN = 64


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("cache"))


def recorded(folder, moved=0):
    """The recorded texts of the trained drafter, their layers numbered one higher than in the target that made them.

    `moved`: taps lie so many positions further along than where they belong.
    """
    save_ends(ends_of(DATA / "target_hf"), folder / "target.safetensors")
    model = AutoModelForCausalLM.from_pretrained(DATA / "target_hf", dtype=torch.float32)
    prompts = []
    for index, sequence in enumerate(EXPECTED["seqs"]):
        ids, start = sequence["greedy_ids"], EXPECTED["prompt_len"]
        with torch.no_grad():
            states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        shard = f"shards/{index}.safetensors"
        taps = torch.cat([state[0] for state in states[:4]], dim=-1)
        save_taps(taps.roll(moved, 0), folder / shard, "float32")
        text = {"token_ids": ids, "prompt_length": start, "argmax": ids[start:]}
        prompts.append({"id": str(index), "data_set": "x", **text, "shard": shard})
    manifest = {
        "schema": 1,
        "target": {"id": "t", "digest": "d", "num_layers": 6, "hidden_size": HIDDEN, "vocab_size": 512},
        "target_layer_ids": [0, 1, 2, 3],
        "taps": TAPS,
        "dtype": "float32",
        "engine": {},
        "template": "ids",
        "thinking": False,
        "prompts_digest": "",
        "prompts": prompts,
        "files": file_facts(folder, ["target.safetensors", *(prompt["shard"] for prompt in prompts)]),
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return load_cache(folder)


def findings(cache, **changes):
    """Check the trained drafter with its true configuration changed; the layers of the cache are 1, 2, 3."""
    config = DrafterConfig.from_hf(json.loads((DATA / "draft_hf" / "config.json").read_text()))
    config = replace(config, **{"target_layer_ids": (1, 2, 3), "num_target_layers": 6, **changes})
    ends = cache.load_ends()
    model = Drafter(config)
    model.load_state_dict(load_file(DATA / "trained_draft.safetensors"))
    loaded = LoadedDrafter(config, model.eval(), Head.of_target(ends, config), Path("x"), "", None)
    told = []
    facts = check(loaded, ends, cache, 64, told.append)
    assert told == [row["name"] for row in facts["mutants"]]
    return facts


def test_a_right_configuration_has_no_suspects(cache):
    facts = findings(cache)
    assert facts["suspects"] == []
    assert len(facts["mutants"]) > 10
    assert "none scores clearly higher" in suspicion(facts)[0]


WRONG = {
    "taps a layer off": ({"target_layer_ids": (0, 1, 2)}, "target_layer_ids [1, 2, 3]"),
    "theta of an old library's default": ({"rope_theta": 1e4}, "rope_theta 1e+06"),
    "another mask id": ({"mask_token_id": 510}, "mask_token_id 511"),
    "causal": ({"is_causal": True}, "block not causal in every layer"),
    "a window": ({"layer_types": (SLIDING,) * 2, "sliding_window": 4, "is_causal": False}, "no sliding window"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_convention_is_named_first(cache, what):
    wrong, named = WRONG[what]
    assert_named(findings(cache, **wrong), named)


@pytest.mark.parametrize("moved, named", [(1, "context earlier by one"), (-1, "context later by one")])
def test_a_shifted_anchor_is_named_first(tmp_path, moved, named):
    """As from an engine that hands out hidden states one position late, or early."""
    assert_named(findings(recorded(tmp_path, moved)), f"{named} position")


def assert_named(facts, mutant):
    assert mutant in facts["suspects"]
    assert suspicion(facts)[0].startswith(f"probable config mismatch: with {mutant} it scores ")


def test_mutants_read_only_layers_that_are_cached_and_never_the_last():
    config = drafter_config(target_layer_ids=(1, 3), num_target_layers=None)
    names = [mutant.name for mutant in mutants(config, (0, 1, 2, 3, 4), 96, 5)]
    assert [name for name in names if "layer_ids" in name] == ["target_layer_ids [0, 2]"]
    assert not any("layer_ids" in mutant.name for mutant in mutants(config, (1, 3), 96, 5))


def test_a_sliding_drafter_is_tried_without_its_window():
    config = drafter_config(layer_types=(SLIDING, SLIDING), sliding_window=9)
    names = [mutant.name for mutant in mutants(config, (0, 2), 96, 4)]
    assert "no sliding window" in names and "block not causal in every layer" in names
    assert "block causal in every layer" not in names
