"""Every bad file gets a sentence that says what is wrong, exit code 2 and no traceback; nothing random is measured."""

import argparse
import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from drafter_config import FULL, SLIDING, DrafterConfig
from eval_drafter import main as evaluate
from extract_hidden_states import main as extract
from harness_bench import HIDDEN, VOCABULARY, drafter_config, ends_of, random_state, save_drafter
from loading import load_drafter, strip_wrappers
from refusal import Refused
from safetensors.torch import load_file, save_file

DATA = Path(__file__).resolve().parents[1] / "data" / "drafter"


def refusal_of(capsys, bench, tmp_path, drafter, *more, cache=None):
    """Run an evaluation that must be refused; return its sentence."""
    options = ["--drafter", drafter, "--cache", cache or bench.cache, "--out", tmp_path / "r.json", *more]
    code = evaluate([*map(str, options)])
    err = capsys.readouterr().err
    assert code == 2
    assert "Traceback" not in err and err.startswith("eval_drafter: ")
    assert not (tmp_path / "r.json").exists()
    return err


def changed(tmp_path, *, config=None, state=None):
    """A drafter folder with changed config keys (None removes one; a dict changes inside) and tensors."""
    plain = drafter_config()
    document = plain.to_hf()
    for key, value in (config or {}).items():
        if isinstance(value, dict):
            inner = {**document.get(key, {}), **value}
            document[key] = {name: each for name, each in inner.items() if each is not None}
        elif value is None:
            document.pop(key)
        else:
            document[key] = value
    tensors = random_state(plain)
    for name, tensor in (state or {}).items():
        tensors.pop(name, None)
        if tensor is not None:
            tensors[name] = tensor
    folder = save_drafter(tmp_path / "changed", plain, tensors)
    (folder / "config.json").write_text(json.dumps(document))
    return folder


CONFIGS = {
    "layer ids": ({"dflash_config": {"target_layer_ids": None}}, "target_layer_ids is missing"),
    "mask id": ({"dflash_config": {"mask_token_id": None}}, "mask_token_id is missing"),
    "theta": ({"rope_parameters": {"rope_theta": None}}, "rope_theta is missing"),
    "block size": ({"block_size": None, "dflash_config": {"block_size": None}}, "block_size is missing"),
    "mask beyond": ({"dflash_config": {"mask_token_id": VOCABULARY}}, "beyond the vocabulary"),
    "one tap more": ({"dflash_config": {"target_layer_ids": [0, 1, 2]}}, "fc.weight is [32, 64], expected [32, 96]"),
    "last layer": ({"dflash_config": {"target_layer_ids": [0, 3]}}, "include the last layer (3)"),
    "beyond the target": ({"dflash_config": {"target_layer_ids": [0, 9]}}, "beyond the target's 4 layers"),
    "taps not cached": ({"dflash_config": {"target_layer_ids": [0, 1]}}, "also reads [1]"),
    "another target": ({"num_target_layers": 36}, "target has 36 layers, the cache's 4"),
    "another width": ({"hidden_size": 64}, "hidden_size is 64, the target's 32"),
    "another vocabulary": ({"vocab_size": 128}, "vocab_size is 128"),
    "anchor first": ({"sample_from_anchor": True}, "anchor-first"),
    "DFlash-2 config": ({"dflash_config": {"selector_rank": 64}}, "DFlash-2"),
    "another architecture": ({"architectures": ["DSparkDraftModel"]}, "not DFlashDraftModel"),
    "yarn": ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type is yarn"),
    "sliding without window": ({"layer_types": [SLIDING, FULL]}, "use_sliding_window is false"),
    "no drafter": ({"hidden_size": None}, "no drafter's configuration"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_that_would_mislead_is_refused(name, bench, tmp_path, capsys):
    changes, sentence = CONFIGS[name]
    assert sentence in refusal_of(capsys, bench, tmp_path, changed(tmp_path, config=changes))


STATES = {
    "missing": ({"layers.1.mlp.up_proj.weight": None}, "missing layers.1.mlp.up_proj.weight"),
    "unexpected": ({"layers.1.self_attn.q_proj.bias": torch.zeros(32)}, "unexpected layers.1.self_attn.q_proj.bias"),
    "shape": ({"norm.weight": torch.ones(31)}, "norm.weight is [31], expected [32]"),
    "not finite": ({"fc.weight": torch.full((32, 64), float("nan"))}, "fc.weight holds numbers that are not finite"),
    "integers": ({"norm.weight": torch.ones(32, dtype=torch.int8)}, "norm.weight is torch.int8"),
    "DFlash-2 keys": ({"layers.0.attention_conv.base_kernel": torch.zeros(2)}, "DFlash-2"),
    "another head": ({"lm_head.weight": torch.zeros(VOCABULARY, HIDDEN)}, "lm_head.weight is not the target's"),
    "another embedding": ({"embed_tokens.weight": torch.zeros(3, HIDDEN)}, "embed_tokens.weight is not the target's"),
}


@pytest.mark.parametrize("name", STATES)
def test_weights_that_are_not_exactly_the_drafters_are_refused(name, bench, tmp_path, capsys):
    changes, sentence = STATES[name]
    assert sentence in refusal_of(capsys, bench, tmp_path, changed(tmp_path, state=changes))


def test_torn_foreign_and_absent_files_are_named(bench, tmp_path, capsys):
    torn = tmp_path / "torn"
    shutil.copytree(bench.drafter, torn)
    weights = torn / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "not a whole safetensors file" in refusal_of(capsys, bench, tmp_path, torn)
    half = tmp_path / "half.pt"
    torch.save({"model": random_state(drafter_config())}, half)
    half.write_bytes(half.read_bytes()[:-3000])
    assert "not a whole torch file" in refusal_of(capsys, bench, tmp_path, half)
    assert "no such file" in refusal_of(capsys, bench, tmp_path, tmp_path / "nowhere")
    assert "holds no drafter" in refusal_of(capsys, bench, tmp_path, tmp_path)
    assert "expected a folder" in refusal_of(capsys, bench, tmp_path, bench.prompts)


class Payload:
    def __reduce__(self):
        return (Path.touch, (Path("/tmp/never"),))


def test_code_in_a_torch_file_is_never_run(bench, tmp_path, capsys):
    torch.save({"model": random_state(drafter_config()), "note": Payload()}, tmp_path / "c.pt")
    assert "nothing in it is run" in refusal_of(capsys, bench, tmp_path, tmp_path / "c.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps({"model": Payload()}, protocol=2))
    assert "eval_drafter" in refusal_of(capsys, bench, tmp_path, tmp_path / "plain.pt")


def test_a_file_without_configuration_asks_for_one(bench, tmp_path, capsys):
    save_file(random_state(drafter_config()), tmp_path / "model.safetensors")
    assert "--config" in refusal_of(capsys, bench, tmp_path, tmp_path / "model.safetensors")
    options = ["--drafter", tmp_path / "model.safetensors", "--cache", bench.cache, "--out", tmp_path / "r.json"]
    assert evaluate([*map(str, options), "--config", str(bench.drafter)]) == 0


def test_a_baseline_can_be_a_training_state_with_its_configuration_named(bench, tmp_path, capsys):
    state = {"draft_state_dict": random_state(drafter_config(), seed=2), "global_step": 7}
    torch.save(state, tmp_path / "training_state.pt")
    options = ["--baseline", tmp_path / "training_state.pt"]
    assert "--baseline-config" in refusal_of(capsys, bench, tmp_path, bench.drafter, *options)
    command = ["--drafter", bench.drafter, "--cache", bench.cache, "--out", tmp_path / "r.json", *options]
    assert evaluate([*map(str, [*command, "--baseline-config", bench.drafter])]) == 0
    document = json.loads((tmp_path / "r.json").read_text())
    assert document["baseline"]["step"] == 7
    assert document["comparison"]["items"] == 3
    out = capsys.readouterr().out
    assert "verdict: " in out and "95% interval" in out and "near ties" in out


def damaged(bench, tmp_path, change):
    cache = tmp_path / "cache"
    shutil.copytree(bench.cache, cache)
    manifest = json.loads((cache / "manifest.json").read_text())
    change(cache, manifest)
    (cache / "manifest.json").write_text(json.dumps(manifest))
    return cache


def flip(cache, manifest):
    shard = cache / "shards" / "00001.safetensors"
    data = bytearray(shard.read_bytes())
    data[-5] ^= 64
    shard.write_bytes(data)


CACHES = {
    "a flipped bit": (flip, "00001.safetensors: damaged"),
    "a lost shard": (
        lambda cache, manifest: (cache / "shards/00000.safetensors").unlink(),
        "00000.safetensors: missing",
    ),
    "a newer schema": (lambda cache, manifest: manifest.update(schema=99), "schema 99"),
    "another tap convention": (lambda cache, manifest: manifest.update(taps="before layer"), "layers would be shifted"),
    "a key gone": (lambda cache, manifest: manifest.pop("engine"), "wrong kind: engine"),
    "text and argmax at odds": (lambda cache, manifest: manifest["prompts"][0]["argmax"].pop(), "don't fit together"),
    "a path outside": (lambda cache, manifest: manifest["files"].update({"../x": {"bytes": 1}}), "outside the cache"),
}


@pytest.mark.parametrize("name", CACHES)
def test_a_damaged_cache_is_refused_and_the_damage_named(name, bench, tmp_path, capsys):
    change, sentence = CACHES[name]
    cache = damaged(bench, tmp_path, change)
    assert sentence in refusal_of(capsys, bench, tmp_path, bench.drafter, cache=cache)


def test_an_unfinished_cache_is_refused(bench, tmp_path, capsys):
    assert "no such folder" in refusal_of(capsys, bench, tmp_path, bench.drafter, cache=tmp_path / "none")
    (tmp_path / "empty").mkdir()
    assert "manifest.json" in refusal_of(capsys, bench, tmp_path, bench.drafter, cache=tmp_path / "empty")


def extraction_refusal(capsys, bench, tmp_path, **changes):
    options = {"target": bench.target, "layers": "0,2", "prompts": bench.prompts, "out": tmp_path / "out", **changes}
    code = extract([f"--{name}={value}" for name, value in options.items()])
    err = capsys.readouterr().err
    assert code == 2 and "Traceback" not in err and not (tmp_path / "out").exists()
    return err


def test_extraction_refuses_bad_prompts_layers_and_targets(bench, tmp_path, capsys):
    prompts = tmp_path / "p.jsonl"

    def with_prompts(text):
        prompts.write_text(text)
        return extraction_refusal(capsys, bench, tmp_path, prompts=prompts)

    assert "p.jsonl:2: not JSON" in with_prompts('{"id": 1, "token_ids": [1]}\n{"id": \n')
    assert "holds no prompts" in with_prompts("")
    assert "two prompts have the id 1" in with_prompts('{"id": 1, "token_ids": [1]}\n' * 2)
    assert "expected one of prompt" in with_prompts('{"id": 1}')
    assert "no token id" in with_prompts('{"id": 1, "token_ids": ["a"]}')
    assert "has no tokens" in with_prompts('{"id": 1, "token_ids": []}')
    assert "has no tokenizer" in with_prompts('{"id": 1, "prompt": "two and two"}')
    assert "beyond the target's 96" in with_prompts('{"id": 1, "token_ids": [96]}')
    assert "include the last layer" in extraction_refusal(capsys, bench, tmp_path, layers="0,3")
    assert "config.json: no such file" in extraction_refusal(capsys, bench, tmp_path, target=tmp_path / "none")
    torn = tmp_path / "torn"
    shutil.copytree(bench.target, torn)
    tensors = load_file(torn / "model.safetensors")
    tensors.pop("model.layers.1.mlp.up_proj.weight")
    save_file(tensors, torn / "model.safetensors", {"format": "pt"})
    assert "would be random numbers" in extraction_refusal(capsys, bench, tmp_path, target=torn)


def test_an_unreachable_server_is_named(bench, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("servers._PAUSES", ())
    err = extraction_refusal(capsys, bench, tmp_path, server="http://127.0.0.1:9")
    assert "http://127.0.0.1:9: no completion" in err


def test_a_visible_gpu_stops_both_programs(bench, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    assert "8 GPU(s) are visible" in refusal_of(capsys, bench, tmp_path, bench.drafter)
    assert "CUDA_VISIBLE_DEVICES=''" in extraction_refusal(capsys, bench, tmp_path)


@pytest.fixture(scope="module")
def ends(bench):
    return ends_of(bench.target)


def same_weights(loaded, state):
    return all(torch.equal(value, state[name]) for name, value in loaded.model.state_dict().items())


@pytest.mark.parametrize("folder", ["draft_hf", "draft_hf_legacy", "draft_speculators"])
def test_every_published_layout_loads(folder):
    loaded = load_drafter(DATA / folder, ends_of(DATA / "target_hf"))
    assert same_weights(loaded, load_file(DATA / folder / "model.safetensors"))


def test_a_drafter_config_refuses_what_it_cannot_be():
    for changes in (
        {"heads": 3},
        {"head_dim": 7},
        {"block_size": 1},
        {"layer_types": (FULL,)},
        {"layer_types": ("x", FULL)},
    ):
        with pytest.raises(Refused):
            drafter_config(**changes)
    with pytest.raises(Refused, match="eagle3"):
        DrafterConfig.from_hf({"speculators_model_type": "eagle3"})


def test_wrappers_come_off_in_any_order_and_the_targets_copies_are_dropped(bench, ends, tmp_path):
    """As a SpecForge training state keeps them, with the target's embedding and head, the run's arguments beside."""
    config, state = drafter_config(), random_state(drafter_config())
    wrapped = {f"module._orig_mod.draft_model.{name}": value for name, value in state.items()}
    wrapped |= {
        "module.lm_head.weight": ends.head_VH.clone(),
        "module.embed_tokens.weight": ends.embedding_VH.bfloat16(),
    }
    content = {"draft_state_dict": wrapped, "global_step": 12, "args": argparse.Namespace(lr=1.0, run="x")}
    torch.save(content, tmp_path / "training_state.pt")
    (tmp_path / "config.json").write_text(json.dumps(config.to_hf()))
    for path in (tmp_path, tmp_path / "training_state.pt"):
        loaded = load_drafter(path, ends)
        assert loaded.step == 12 and same_weights(loaded, state)
    with pytest.raises(Refused, match="more than one model"):
        strip_wrappers({"module.norm.weight": torch.ones(1), "norm.weight": torch.ones(1)})


def test_a_reduced_vocabulary_drafts_the_targets_tokens(bench, ends, tmp_path, capsys):
    """Speculators layout with its own head over every third token: rows of the target's head, so tokens must agree."""
    plain, tokens = drafter_config(), torch.arange(0, VOCABULARY, 3)
    state = random_state(plain)
    members = torch.zeros(VOCABULARY, dtype=torch.bool)
    members[tokens] = True
    extra = {
        "lm_head.weight": ends.head_VH[tokens].clone(),
        "t2d": members,
        "d2t": tokens - torch.arange(len(tokens)),
        "verifier_norm.weight": torch.ones(HIDDEN),
        "verifier_lm_head.weight": ends.head_VH.clone(),
    }
    backbone = {key: value for key, value in plain.to_hf().items() if key not in ("dflash_config", "architectures")}
    document = {
        "speculators_model_type": "dflash",
        "transformer_layer_config": backbone,
        "aux_hidden_state_layer_ids": [1, 3],
        "block_size": plain.block_size,
        "mask_token_id": plain.mask_token_id,
        "draft_vocab_size": len(tokens),
        "sample_from_anchor": False,
    }
    folder = tmp_path / "reduced"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(document))
    save_file({**state, **extra}, folder / "model.safetensors")
    loaded = load_drafter(folder, ends)
    assert loaded.config.target_layer_ids == (0, 2)
    hidden = torch.randn(7, HIDDEN, generator=torch.Generator().manual_seed(0))
    assert torch.equal(loaded.head.best(hidden, 1).ids_RK[:, 0], tokens[(hidden @ ends.head_VH[tokens].T).argmax(-1)])
    assert evaluate(["--drafter", str(folder), "--cache", str(bench.cache), "--out", str(tmp_path / "ok.json")]) == 0
    capsys.readouterr()
    save_file({**state, **extra, "d2t": torch.zeros(len(tokens), dtype=torch.long)}, folder / "model.safetensors")
    assert "t2d and d2t name different tokens" in refusal_of(capsys, bench, tmp_path, folder)
