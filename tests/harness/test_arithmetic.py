"""bfloat16 is an extraction's choice: the numbers are transformers' own in it, the cache says so, none holds both."""

import json
import shutil

import pytest
import torch
from arithmetic import Rates, settle
from cache import load_cache
from decoder import Decoder
from extract_hidden_states import main as extract
from harness_bench import make_target
from safetensors_reader import TensorFiles
from synthetic import write_target
from test_layer_stream import in_memory, save_hybrid, streamed, texts_of, without

SIZES = without("initializer_range", "bos_token_id", "eos_token_id", "pad_token_id")


@pytest.fixture(scope="module")
def halved(tmp_path_factory):
    """A target stored in bfloat16, prompts, and its cache computed in bfloat16."""
    root = tmp_path_factory.mktemp("halved")
    (root / "target").mkdir()
    write_target(root / "target", **SIZES)
    lines = [json.dumps({"id": str(i), "token_ids": text[:6]}) for i, text in enumerate(texts_of((9, 17, 30)))]
    (root / "prompts.jsonl").write_text("\n".join(lines))
    assert extract(command_for(root, root / "cache", "--arithmetic", "bfloat16")) == 0
    return root


def command_for(root, out, *more):
    options = ["--target", root / "target", "--prompts", root / "prompts.jsonl", "--layers", "0,2", "--out", out]
    return [str(word) for word in (*options, "--max-new-tokens", 4, *more)]


def engine_of(out):
    return json.loads((out / "manifest.json").read_text())["engine"]


def test_hidden_states_in_bfloat16_are_those_of_transformers_in_it(halved, tmp_path):
    texts = texts_of((23,))
    ours, _ = streamed(halved / "target", tmp_path, texts, (0, 2), arithmetic="bfloat16")
    theirs, _ = in_memory(halved / "target", texts, (0, 2), torch.bfloat16)
    assert all(torch.equal(tap, wanted.float()) for tap, wanted in zip(ours[0], theirs[0], strict=True))


def test_the_hybrid_in_bfloat16_is_as_near_to_float32_as_transformers_is(tmp_path):
    folder, texts = save_hybrid(tmp_path / "t", multimodal=False), texts_of()
    ours, _ = streamed(folder, tmp_path / "w", texts, (4,), arithmetic="bfloat16")
    theirs, _ = in_memory(folder, texts, (4,), torch.bfloat16)
    exact, _ = in_memory(folder, texts, (4,))
    off, allowed = (
        sum(float((a[0] - b[0]).norm()) for a, b in zip(each, exact, strict=True)) for each in (ours, theirs)
    )
    assert 0 < off < 1.3 * allowed


def test_a_cache_says_what_it_was_computed_in_and_is_rebuilt_in_the_same(halved, tmp_path, capsys):
    out = tmp_path / "cache"
    shutil.copytree(halved / "cache", out)
    assert engine_of(out)["arithmetic"] == "bfloat16"
    (out / "shards" / "00001.safetensors").unlink()
    assert extract(["--target", str(halved / "target"), "--out", str(out), "--rebuild", "00001"]) == 0
    assert "byte for byte" in capsys.readouterr().out and load_cache(out).digest == load_cache(halved / "cache").digest


def test_a_cache_is_of_one_arithmetic(halved, tmp_path, capsys):
    """Another one is refused; what was begun goes on in its own if that is left to be measured."""
    assert extract(command_for(halved, halved / "cache")) == 2
    assert "was made with another arithmetic" in capsys.readouterr().err
    assert extract(command_for(halved, halved / "cache", "--arithmetic", "auto")) == 0
    growing = tmp_path / "cache.partial"
    growing.mkdir()
    settings = json.loads((halved / "cache" / "manifest.json").read_text())["settings"]
    (growing / "settings.json").write_text(json.dumps(settings))
    assert extract(command_for(halved, tmp_path / "cache")) == 2
    assert extract(command_for(halved, tmp_path / "cache", "--arithmetic", "auto")) == 0
    assert "arithmetic: bfloat16 (as it was begun)" in capsys.readouterr().err
    assert load_cache(tmp_path / "cache").digest == load_cache(halved / "cache").digest


def test_auto_takes_what_it_measured_and_keeps_that(halved, tmp_path, capsys):
    out = tmp_path / "cache"
    assert extract(command_for(halved, out, "--arithmetic", "auto")) == 0
    engine = engine_of(out)
    rates = Rates(**engine["gflops_measured"])
    assert engine["arithmetic"] == rates.faster and (rates.inputs, rates.outputs) in ((32, 48), (48, 32))
    assert f"arithmetic: {rates.faster} ({rates})" in capsys.readouterr().err
    assert not (out / "rates.json").exists()


@pytest.mark.parametrize("half, chosen", [(149, "float32"), (150, "bfloat16"), (1.3, "float32")])
def test_only_a_clear_gain_is_worth_other_numbers(half, chosen):
    assert Rates(rows=512, inputs=8, outputs=8, float32=100, bfloat16=half).faster == chosen


def test_weights_in_float32_are_not_rounded(tmp_path, capsys):
    (tmp_path / "prompts.jsonl").write_text('{"id": "0", "token_ids": [1]}')
    target = make_target(tmp_path / "target")
    chosen = settle("auto", Decoder(target, TensorFiles(target)), None)
    assert chosen.name == "float32" and "not stored in bfloat16" in chosen.why and chosen.rates is None
    assert extract(command_for(tmp_path, tmp_path / "cache", "--arithmetic", "bfloat16")) == 2
    assert "is not stored in bfloat16, which would round it" in capsys.readouterr().err
