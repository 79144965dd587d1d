"""Each layout of a configuration refuses what it must not guess: exit code 2, a sentence with the reason, no result."""

import copy
import json
import shutil

import pytest
import torch
from drafter_config import SLIDING
from eval_drafter import main as evaluate
from harness_bench import drafter_config, random_state, save_drafter
from safetensors.torch import save_file

PLAIN = drafter_config().to_hf()


def old_layout():
    """Block size and theta on top, as the first published drafters have them."""
    document = {key: each for key, each in PLAIN.items() if key != "rope_parameters"}
    dflash = {key: each for key, each in PLAIN["dflash_config"].items() if key != "block_size"}
    return {**document, "dflash_config": dflash, "rope_theta": 1e4, "rope_scaling": None}


def speculators_layout():
    """The backbone nested, layer ids counted one higher."""
    backbone = {key: each for key, each in PLAIN.items() if key not in ("dflash_config", "architectures", "block_size")}
    return {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": "dflash",
        "transformer_layer_config": backbone,
        "aux_hidden_state_layer_ids": [1, 3],
        "block_size": 6,
        "mask_token_id": 95,
        "draft_vocab_size": 96,
        "sample_from_anchor": False,
    }


LAYOUTS = {"old": old_layout, "speculators": speculators_layout}


def change(document, changes):
    """Keys of nested objects by a path with dots; None removes one."""
    document = copy.deepcopy(document)
    for path, value in changes.items():
        *above, key = path.split(".")
        inner = document
        for name in above:
            inner = inner[name]
        if value is None:
            inner.pop(key)
        else:
            inner[key] = value
    return document


def evaluation(bench, tmp_path, document, state=None):
    folder = save_drafter(tmp_path / "drafter", drafter_config(), state or random_state(drafter_config()))
    (folder / "config.json").write_text(json.dumps(document))
    options = ["--drafter", folder, "--cache", bench.cache, "--out", tmp_path / "r.json", "--budgets", "none"]
    return evaluate([*map(str, options), "--max-anchors", "0", "--no-checks"])


def refusal(capsys, bench, tmp_path, document, state=None):
    assert evaluation(bench, tmp_path, document, state) == 2
    err = capsys.readouterr().err
    assert err.startswith("eval_drafter: ") and err.count("\n") == 1 and not (tmp_path / "r.json").exists()
    return err


@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_other_layouts_give_the_rounds_of_the_new_one(layout, bench, tmp_path):
    rounds = []
    for name, document in (("new", PLAIN), ("other", LAYOUTS[layout]())):
        (tmp_path / name).mkdir()
        assert evaluation(bench, tmp_path / name, document) == 0
        rounds.append(json.loads((tmp_path / name / "r.json").read_text())["prompts"])
    assert rounds[0] == rounds[1]


BAD = {
    ("old", "layer ids"): ({"dflash_config.target_layer_ids": None}, "target_layer_ids is missing"),
    ("old", "mask id"): ({"dflash_config.mask_token_id": None}, "mask_token_id is missing"),
    ("old", "theta"): ({"rope_theta": None}, "rope_theta is missing"),
    ("old", "block size"): ({"block_size": None}, "block_size is missing"),
    ("old", "scaled positions"): ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_type is yarn"),
    ("old", "mask beyond the target"): (
        {"vocab_size": 128, "dflash_config.mask_token_id": 100},
        "the target's 96 rows",
    ),
    ("old", "anchor first"): ({"dflash_config.query_zero_predicts_next": True}, "anchor-first"),
    ("old", "sinks"): ({"dflash_config.attention_sink_bias": True}, "attention sinks are not supported"),
    ("old", "biases"): ({"attention_bias": True}, "has no biases"),
    ("old", "activation"): ({"hidden_act": "gelu"}, "hidden_act is gelu"),
    ("old", "window said and not placed"): ({"dflash_config.use_swa": True}, "names no sliding_attention layer"),
    ("old", "two windows"): (
        {
            "layer_types": [SLIDING] * 2,
            "use_sliding_window": True,
            "sliding_window": 8,
            "dflash_config.swa_window_size": 9,
        },
        "sliding_window is 8, dflash_config.swa_window_size 9",
    ),
    ("old", "doubled taps"): ({"dflash_config.target_layer_ids": [0, 0]}, "must be distinct layers"),
    ("speculators", "layer ids"): ({"aux_hidden_state_layer_ids": None}, "aux_hidden_state_layer_ids is missing"),
    ("speculators", "mask id"): ({"mask_token_id": None}, "mask_token_id is missing"),
    ("speculators", "theta"): ({"transformer_layer_config.rope_parameters": None}, "rope_theta is missing"),
    ("speculators", "block size"): ({"block_size": None}, "block_size is missing"),
    ("speculators", "last layer"): ({"aux_hidden_state_layer_ids": [1, 4]}, "include the last layer (3)"),
    ("speculators", "embedding as a tap"): ({"aux_hidden_state_layer_ids": [0, 1]}, "must be distinct layers counted"),
    ("speculators", "mask beyond"): ({"mask_token_id": 96}, "beyond the vocabulary"),
    ("speculators", "anchor first"): ({"sample_from_anchor": True}, "anchor-first"),
    ("speculators", "another width"): ({"target_hidden_size": 64}, "target_hidden_size is 64"),
    ("speculators", "no backbone"): ({"transformer_layer_config": "x"}, "transformer_layer_config is missing"),
    ("speculators", "partly rotated"): (
        {"transformer_layer_config.rope_parameters.partial_rotary_factor": 0.5},
        "partly rotated heads",
    ),
    ("speculators", "one tap more"): ({"aux_hidden_state_layer_ids": [1, 2, 3]}, "fc.weight is [32, 64]"),
    ("speculators", "own head that isn't there"): ({"draft_vocab_size": 32}, "lm_head.weight, d2t is missing"),
}


@pytest.mark.parametrize("layout, what", BAD, ids=lambda part: part)
def test_what_must_not_be_guessed_is_refused(layout, what, bench, tmp_path, capsys):
    changes, sentence = BAD[layout, what]
    assert sentence in refusal(capsys, bench, tmp_path, change(LAYOUTS[layout](), changes))


HEADS = {
    "another size": ({"d2t": torch.zeros(31, dtype=torch.long)}, "d2t [31]; expected [32, 32] and [32]"),
    "tokens beyond": ({"d2t": torch.full((32,), 70)}, "does not map to rising token ids below 96"),
    "not finite": ({"lm_head.weight": torch.full((32, 32), torch.inf)}, "lm_head.weight holds numbers that are not"),
}


@pytest.mark.parametrize("what", HEADS)
def test_a_reduced_vocabulary_that_does_not_fit_is_refused(what, bench, tmp_path, capsys):
    changes, sentence = HEADS[what]
    own = {"lm_head.weight": torch.zeros(32, 32), "d2t": torch.zeros(32, dtype=torch.long), **changes}
    document = change(speculators_layout(), {"draft_vocab_size": 32})
    assert sentence in refusal(capsys, bench, tmp_path, document, {**random_state(drafter_config()), **own})


def test_taps_that_overflow_in_the_drafter_are_refused(bench, tmp_path, capsys):
    huge = {**random_state(drafter_config()), "fc.weight": torch.full((32, 64), 3e38)}
    assert "of the cached taps that are not finite" in refusal(capsys, bench, tmp_path, PLAIN, huge)


FILES = {
    "a list": (lambda file: torch.save([1, 2], file), "holds list, expected a state dict"),
    "no weights": (lambda file: torch.save({"step": 3, "model": {"x": 1}}, file), "no state dict under any of"),
    "weights and more": (
        lambda file: torch.save({"model": {"x": 1, "norm.weight": torch.ones(2)}}, file),
        "no state dict under any of",
    ),
}


@pytest.mark.parametrize("what", FILES)
def test_a_torch_file_without_a_drafter_is_refused(what, bench, tmp_path, capsys):
    write, sentence = FILES[what]
    write(tmp_path / "x.pt")
    options = ["--drafter", tmp_path / "x.pt", "--cache", bench.cache, "--out", tmp_path / "r.json"]
    assert evaluate([*map(str, options), "--config", str(bench.drafter)]) == 2
    assert sentence in capsys.readouterr().err


def test_metadata_and_indexes_that_lie_are_refused(bench, tmp_path, capsys):
    def said(drafter):
        options = ["--drafter", drafter, "--cache", bench.cache, "--out", tmp_path / "r.json"]
        assert evaluate([*map(str, options)]) == 2
        return capsys.readouterr().err

    state = random_state(drafter_config())
    save_file(state, tmp_path / "model.safetensors", {"config": "{"})
    assert "its metadata key config is not JSON" in said(tmp_path / "model.safetensors")
    shutil.copytree(bench.drafter, tmp_path / "indexed")
    index = tmp_path / "indexed" / "model.safetensors.index.json"
    index.write_text(
        json.dumps({"weight_map": {**dict.fromkeys(state, "model.safetensors"), "x": "model.safetensors"}})
    )
    assert "the index names x, which no file holds" in said(tmp_path / "indexed")
    index.write_text(json.dumps({"weight_map": {name: "gone.safetensors" for name in state}}))
    assert "gone.safetensors: no such file" in said(tmp_path / "indexed")
    index.write_text("{}")
    assert "has no weight_map" in said(tmp_path / "indexed")
    (tmp_path / "indexed" / "config.json").write_text("[1]")
    index.unlink()
    assert "expected a JSON object" in said(tmp_path / "indexed")
