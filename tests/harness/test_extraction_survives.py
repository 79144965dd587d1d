"""An extraction that is killed goes on at its layer; a damaged file of a cache is made again alone; memory is held."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from batching import Chunk
from cache import load_cache
from decoder import Decoder
from extract_hidden_states import main as extract
from harness_bench import HARNESS, make_target
from layer_stream import LayerBuffer
from memory import Needs, anonymous_memory, parse_size, plan_memory, size_text
from refusal import Refused
from safetensors_reader import TensorFiles
from synthetic import write_target
from transformers import AutoModelForCausalLM, Qwen3_5TextConfig, Qwen3Config, Qwen3ForCausalLM

SCRIPT = HARNESS / "extract_hidden_states.py"
QUIET = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def command_for(target, prompts, out, *more):
    options = ["--target", target, "--prompts", prompts, "--out", out, *more]
    return [str(word) for word in options]


def write_prompts(file, lengths, vocabulary):
    generator = torch.Generator().manual_seed(7)
    lines = []
    for index, length in enumerate(lengths):
        ids = torch.randint(0, vocabulary, (length,), generator=generator).tolist()
        lines.append(json.dumps({"id": str(index), "token_ids": ids}))
    file.write_text("\n".join(lines))
    return file


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """A target whose layers take long enough to be interrupted between them, its prompts and its cache."""
    root = tmp_path_factory.mktemp("deep")
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 40}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    Qwen3ForCausalLM(Qwen3Config(**sizes, **heads, initializer_range=0.1)).save_pretrained(root / "target")
    prompts = write_prompts(root / "prompts.jsonl", [150] * 12, 64)
    options = ("--layers", "0,30", "--max-new-tokens", "1")
    assert extract(command_for(root / "target", prompts, root / "cache", *options)) == 0
    return root, options


INTERRUPTED = pytest.param(signal.SIGINT, id="interrupted", marks=pytest.mark.full)


@pytest.mark.full
@pytest.mark.parametrize("how", [pytest.param(signal.SIGKILL, id="killed"), INTERRUPTED])
def test_a_killed_extraction_goes_on_at_its_layer_and_makes_the_same_cache(how, deep, tmp_path):
    root, options = deep
    command = command_for(root / "target", root / "prompts.jsonl", tmp_path / "cache", *options)
    state = tmp_path / "cache.partial" / "layers" / "state.json"
    process = subprocess.Popen(
        [sys.executable, SCRIPT, *command],
        env=QUIET,
        stderr=subprocess.PIPE,
    )
    while process.poll() is None and not (state.exists() and json.loads(state.read_text())["done"] >= 5):
        time.sleep(0.002)
    process.send_signal(how)
    said = process.communicate()[1].decode()
    if how == signal.SIGINT:
        assert process.returncode == 130 and "interrupted; the same command goes on from here" in said
    else:
        assert process.returncode == -signal.SIGKILL, "it was over before it could be killed"
    done = json.loads(state.read_text())["done"]
    assert not (tmp_path / "cache").exists()

    again = subprocess.run([sys.executable, SCRIPT, *command], env=QUIET, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    layers = set(map(int, re.findall(r"layer (\d+),", again.stderr)))
    assert layers == set(range(done, 40))
    assert " complete " not in again.stderr
    ours, reference = load_cache(tmp_path / "cache"), load_cache(root / "cache")
    assert ours.manifest == reference.manifest
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {"manifest.json", "shards", "target.safetensors"}
    assert all(not path.name.startswith(".") for path in (tmp_path / "cache" / "shards").iterdir())


def test_the_same_command_finds_the_cache_and_other_settings_are_refused(deep, capsys):
    root, options = deep
    command = command_for(root / "target", root / "prompts.jsonl", root / "cache", *options)
    assert extract(command) == 0
    assert "already there" in capsys.readouterr().out
    assert extract([*command, "--dtype", "bfloat16"]) == 2
    assert "made with another dtype" in capsys.readouterr().err


def damage(file):
    data = bytearray(file.read_bytes())
    data[-5] ^= 64
    file.write_bytes(data)


@pytest.mark.parametrize("change", [damage, Path.unlink], ids=["damaged", "lost"])
@pytest.mark.parametrize("name", ["shards/00001.safetensors", "target.safetensors"])
def test_a_file_is_made_again_alone_byte_for_byte(bench, tmp_path, capsys, name, change):
    cache = tmp_path / "cache"
    shutil.copytree(bench.cache, cache)
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*.*") if path.is_file()}
    change(cache / name)
    with pytest.raises(Refused, match=f"{Path(name).name}.*--rebuild {Path(name).name}"):
        load_cache(cache)
    assert extract(["--target", str(bench.target), "--out", str(cache), "--rebuild", Path(name).name]) == 0
    assert "byte for byte" in capsys.readouterr().out
    assert load_cache(cache).digest == load_cache(bench.cache).digest
    after = {path: path.stat().st_mtime_ns for path in cache.rglob("*.*") if path.is_file()}
    assert {path for path in after if after[path] != before.get(path)} == {cache / name}


def test_rebuilding_from_another_target_or_an_unknown_file_is_refused(bench, tmp_path, capsys):
    other = make_target(tmp_path / "other", seed=9)
    assert extract(["--target", str(other), "--out", str(bench.cache), "--rebuild", "00001"]) == 2
    assert "their digests differ" in capsys.readouterr().err
    assert extract(["--target", str(bench.target), "--out", str(bench.cache), "--rebuild", "00077"]) == 2
    assert "knows no file 00077" in capsys.readouterr().err


def test_a_shard_that_comes_out_otherwise_is_said_so_in_the_manifest(bench, tmp_path, capsys):
    """As on another machine: here the cache claims other bytes than this machine makes."""
    cache = tmp_path / "cache"
    shutil.copytree(bench.cache, cache)
    damage(cache / "shards" / "00002.safetensors")
    manifest = json.loads((cache / "manifest.json").read_text())
    manifest["files"]["shards/00002.safetensors"]["sha256"] = "0" * 64
    (cache / "manifest.json").write_text(json.dumps(manifest))
    assert extract(["--target", str(bench.target), "--out", str(cache), "--rebuild", "00002"]) == 0
    assert "not the same bytes for shards/00002.safetensors" in capsys.readouterr().out
    assert load_cache(cache).manifest["rebuilt"][0]["files"] == ["shards/00002.safetensors"]


def test_a_tight_budget_makes_chunks_smaller():
    needs = Needs(held=0, layer=100 << 20, per_token=100_000, longest=64)
    assert [plan_memory(needs, budget << 20).chunk_tokens for budget in (600, 300, 200, 155)] == [2048, 1024, 512, 64]


@pytest.mark.parametrize("text, size", [("750MB", 750_000_000), ("1.5GiB", 1610612736), ("2000000", 2 * 10**6)])
def test_sizes_are_read_as_people_write_them(text, size):
    assert parse_size(text) == size
    assert size_text(1610612736) == "1.50 GiB"


WIDE = {  # 600 MB in bfloat16, 1.2 GB in float32
    "vocab_size": 2048,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 20,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
}


def limit_data(size):
    return lambda: resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def anonymous_bytes(pid):
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon"))


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_target_several_times_larger_than_the_budget_is_read_within_it(tmp_path):
    """The budget is 250 MB more than the interpreter with its libraries takes; the target 600 MB, 1.2 GB in float32."""
    size = write_target(tmp_path, **WIDE)
    prompts = write_prompts(tmp_path / "prompts.jsonl", [40, 64, 100], 2048)
    texts = tmp_path / "cache.partial" / "texts"
    texts.mkdir(parents=True)
    for index in range(3):  # as an earlier run would have them from a server
        (texts / f"{index:05d}.json").write_text('{"produced": [5, 6, 7]}')
    baseline = subprocess.run(
        [sys.executable, "-c", "import decoder, extraction, memory, transformers; print(memory.anonymous_memory())"],
        env={**QUIET, "PYTHONPATH": str(HARNESS)},
        capture_output=True,
        text=True,
        check=True,
    )
    budget = int(baseline.stdout) + 250_000_000
    command = command_for(tmp_path, prompts, tmp_path / "cache", "--layers", "1,9,17", "--memory", str(budget))
    process = subprocess.Popen(
        [sys.executable, SCRIPT, *command, "--max-new-tokens", "3"],
        env=QUIET,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=limit_data(budget + (300 << 20)),  # what is reserved counts, not only what is filled
    )
    peak = 0
    while process.poll() is None:
        peak = max(peak, anonymous_bytes(process.pid))
        time.sleep(0.01)
    said = process.communicate()[0].decode()
    assert process.returncode == 0, said
    assert re.search(rf"memory: 1 layer at a time, chunks of \d+ tokens: up to \d+ MiB, of {size_text(budget)}", said)
    assert size > 600_000_000 and peak < budget
    assert load_cache(tmp_path / "cache").manifest["greedy_check"]["tokens"] == 9
    print(f"peak {peak / 1e6:.0f} MB, interpreter {int(baseline.stdout) / 1e6:.0f} MB, budget {budget / 1e6:.0f} MB")


class Sampler(threading.Thread):
    """The most anonymous memory of this process while it runs."""

    def __init__(self):
        super().__init__(daemon=True)
        self.peak, self.over = 0, threading.Event()

    def run(self):
        while not self.over.wait(0.001):
            self.peak = max(self.peak, anonymous_memory())

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *error):
        self.over.set()
        self.join()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", [0, 1], ids=["linear attention", "full attention"])
def test_a_chunk_fills_no_more_than_the_plan_says(tmp_path, kind):
    """Layers of the proportions of a 27B hybrid, an eighth as wide."""
    sizes = {"hidden_size": 640, "intermediate_size": 2176, "num_hidden_layers": 2, "vocab_size": 64}
    heads = {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 256}
    linear = {"linear_num_key_heads": 2, "linear_num_value_heads": 6}
    kinds = ["linear_attention", "full_attention"]
    config = Qwen3_5TextConfig(**sizes, **heads, **linear, layer_types=kinds, pad_token_id=None)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    decoder = Decoder(tmp_path, TensorFiles(tmp_path))
    chunk = Chunk(0, (500, 512, 512, 512), decoder.packed)
    rows = torch.randn(sum(chunk.lengths), 640)
    weights = LayerBuffer(decoder).read(kind)
    with decoder.loaded(kind, weights):
        before = anonymous_memory()
        with Sampler() as sampler:
            out = torch.empty_like(rows)
            chunk.from_batch(decoder.run(chunk, rows), out)
    grown, planned = sampler.peak - before, 2048 * decoder.bytes_per_token
    print(f"{grown / 1e6:.0f} MB of {planned / 1e6:.0f} MB planned")
    assert grown < planned + (48 << 20)
