"""What an extraction can't do right it refuses before it begins: exit code 2, a sentence with the reason, no cache."""

import json
import shutil
from collections import namedtuple

import pytest
import torch
from cache import file_facts
from decoder import Decoder
from eval_drafter import main as evaluate
from extract_hidden_states import main as extract
from harness_bench import make_target
from harness_server import answering
from refusal import Refused
from safetensors.torch import load_file, save_file
from safetensors_reader import TensorFiles
from test_layer_stream import save_hybrid


@pytest.fixture
def refused(bench, tmp_path, capsys):
    """Run an extraction that must be refused; its sentence."""

    def run(**changes):
        options = {"target": bench.target, "layers": "0,2", "prompts": bench.prompts, "out": tmp_path / "out"}
        code = extract([f"--{name.replace('_', '-')}={value}" for name, value in {**options, **changes}.items()])
        err = capsys.readouterr().err
        assert code == 2 and "Traceback" not in err and not (tmp_path / "out").exists()
        return next(line for line in err.splitlines() if line.startswith("extract_hidden_states: "))

    return run


def copied(bench, folder, config=None, weights=None):
    """The target with its configuration or weights changed."""
    shutil.copytree(bench.target, folder)
    if config is not None:
        document = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**document, **config}))
    if weights is not None:
        tensors = load_file(folder / "model.safetensors")
        weights(tensors)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_a_cache_of_another_target_is_not_taken_for_this_one(bench, tmp_path, capsys):
    options = ["--layers", "0,2", "--prompts", bench.prompts, "--max-new-tokens", "24", "--out", bench.cache]
    other = make_target(tmp_path / "other", seed=9)
    assert extract([*map(str, options), "--target", str(other)]) == 2
    assert "was made with another target_digest" in capsys.readouterr().err


def test_what_is_no_language_model_is_refused(bench, refused, tmp_path):
    folder = copied(bench, tmp_path / "vision", {"num_hidden_layers": None})
    assert "not a language model" in refused(target=folder)
    folder = copied(bench, tmp_path / "unknown", {"model_type": "from_tomorrow"})
    assert "transformers can't read its config.json" in refused(target=folder)
    folder = copied(bench, tmp_path / "encoder", {"model_type": "bert", "architectures": ["BertModel"]})
    assert str(folder) in refused(target=folder)
    (folder / "model.safetensors").unlink()
    assert "holds neither model.safetensors nor" in refused(target=folder)


CODE = "from pathlib import Path\nPath({marker!r}).touch()\nfrom transformers import Qwen3Config as C\n"


@pytest.mark.parametrize("model_type", ["qwen3", "from_tomorrow"])
def test_code_beside_a_target_is_never_run(bench, tmp_path, capsys, model_type):
    names = {"AutoConfig": "evil.C", "AutoModel": "evil.C", "AutoModelForCausalLM": "evil.C"}
    folder = copied(bench, tmp_path / "target", {"model_type": model_type, "auto_map": names})
    (folder / "evil.py").write_text(CODE.format(marker=str(tmp_path / "ran")))
    options = ["--target", folder, "--layers", "0,2", "--prompts", bench.prompts, "--max-new-tokens", "2"]
    code = extract([*map(str, options), "--out", str(tmp_path / "cache")])
    assert code == (0 if model_type == "qwen3" else 2), capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


def test_weights_that_transformers_would_make_up_are_refused_where_it_generates(bench, refused, tmp_path):
    """Here one that the layers don't need before texts are made: of the wrong name, it would be random."""
    folder = copied(bench, tmp_path / "t", weights=lambda held: held.update(other=held.pop("model.norm.weight")))
    assert "model.norm.weight" in refused(target=folder)


def test_kernels_of_a_gpu_are_refused_for_linear_attention_alone(bench, tmp_path, monkeypatch):
    (tmp_path / "site" / "fla").mkdir(parents=True)
    (tmp_path / "site" / "fla" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "site")
    folder = save_hybrid(tmp_path / "hybrid", multimodal=False)
    with pytest.raises(Refused, match="fla is installed: its kernels need a GPU"):
        Decoder(folder, TensorFiles(folder))
    Decoder(bench.target, TensorFiles(bench.target))


def test_a_disk_that_can_not_hold_the_cache_is_seen_before_the_layers_run(refused, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage(9, 9, 100))
    assert "are needed there, 0 MiB are free" in refused()


@pytest.mark.parametrize(
    "line, sentence",
    [
        ("[1]", "expected an object with an id"),
        ('{"prompt": "x"}', "expected an object with an id"),
        ('{"id": 1, "prompt": "x", "token_ids": [1]}', "expected one of prompt (text), messages (a list) or token_ids"),
        ('{"id": 1, "prompt": ["x"]}', "expected one of prompt (text)"),
        ('{"id": 1, "token_ids": [-1]}', "no token id"),
    ],
)
def test_a_line_that_is_no_prompt_is_named(refused, tmp_path, line, sentence):
    (tmp_path / "p.jsonl").write_text(line)
    said = refused(prompts=tmp_path / "p.jsonl")
    assert "p.jsonl:1: " in said and sentence in said


def test_prompts_that_can_not_be_read_are_named(refused, tmp_path):
    assert "none.jsonl: not readable" in refused(prompts=tmp_path / "none.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(b'{"id": "\xe9"}')
    assert "latin.jsonl: not readable" in refused(prompts=tmp_path / "latin.jsonl")


ANSWERS = {
    "no model listed": (lambda path, request: (200, {"data": []}), "lists no model. Name it with --server-model"),
    "no choices": (lambda path, request: (200, {"data": [{"id": "m"}]}), "holds no choices: is it /v1/completions?"),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_a_server_that_is_something_else_is_named(refused, what):
    answer, sentence = ANSWERS[what]
    with answering(answer) as url:
        assert sentence in refused(server=url, api="completions")


def test_a_token_that_the_target_does_not_have_is_refused(refused):
    reply = {"output_ids": [96], "meta_info": {}}
    with answering(lambda path, request: (200, reply if path == "/generate" else {})) as url:
        assert "its completion holds a token beyond the target's 96" in refused(server=url)


def damaged(bench, tmp_path, change):
    """A cache whose manifest agrees with its files, and says or holds what it must not."""
    cache = tmp_path / "cache"
    shutil.copytree(bench.cache, cache)
    manifest = json.loads((cache / "manifest.json").read_text())
    change(cache, manifest)
    if isinstance(manifest["files"], dict):
        manifest["files"] = file_facts(cache, list(manifest["files"]))
    (cache / "manifest.json").write_text(json.dumps(manifest))
    return cache


def resave(name, change):
    def resaved(cache, manifest):
        tensors = load_file(cache / name)
        change(tensors)
        save_file(tensors, cache / name)

    return resaved


CACHES = {
    "no prompts": (lambda cache, manifest: manifest.update(prompts=[]), "holds no prompts"),
    "unknown dtype": (lambda cache, manifest: manifest.update(dtype="int4"), "dtype is int4"),
    "a prompt without words": (lambda cache, manifest: manifest["prompts"][0].pop("token_ids"), "a prompt lacks"),
    "taps too short": (
        resave("shards/00000.safetensors", lambda held: held.update(taps=held["taps"][1:].clone())),
        "not those of its manifest",
    ),
    "taps not finite": (
        resave("shards/00000.safetensors", lambda held: held["taps"].fill_(torch.nan)),
        "hidden states that are not finite",
    ),
    "no embedding": (
        resave("target.safetensors", lambda held: held.pop("embed_tokens.weight")),
        "has no embed_tokens.weight",
    ),
    "head of another size": (
        resave("target.safetensors", lambda held: held.update({"lm_head.weight": torch.ones(95, 32)})),
        "expected equal shapes",
    ),
    "whole numbers": (
        resave("target.safetensors", lambda held: held.update({"embed_tokens.weight": torch.ones(96, 32).long()})),
        "expected a float matrix",
    ),
}


@pytest.mark.parametrize("what", CACHES)
def test_a_cache_that_holds_what_it_must_not_is_refused(what, bench, tmp_path, capsys):
    change, sentence = CACHES[what]
    cache = damaged(bench, tmp_path, change)
    options = ["--drafter", bench.drafter, "--cache", cache, "--out", tmp_path / "r.json"]
    assert evaluate([*map(str, options)]) == 2
    err = capsys.readouterr().err
    assert sentence in err and err.startswith("eval_drafter: ") and not (tmp_path / "r.json").exists()
