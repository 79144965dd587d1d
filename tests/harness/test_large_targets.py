"""A 27B target in 16 GB: on paper, by the plan of the code itself, and in earnest with layers of that size.

Its weights file holds nothing: it has the size and the names, and no blocks on the disk. Zeros take as much memory and
as long to read, widen and multiply as other numbers.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from cache import load_cache
from decoder import Decoder
from memory import Needs, plan_memory, size_text
from refusal import Refused
from safetensors_reader import TensorFiles, encode_header
from test_extraction_survives import QUIET, SCRIPT, anonymous_bytes, limit_data, write_prompts
from transformers import AutoModelForCausalLM, Qwen3_5TextConfig

GB = 10**9
DOCS = (Path(__file__).resolve().parents[2] / "docs" / "harness.md").read_text()


def hollow_27b(folder, **changes):
    """Configuration and tensors of Qwen3.6-27B (facts from public descriptions); returns the bytes of its weights."""
    sizes = {
        "vocab_size": 248320,
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 64,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 16,
        "tie_word_embeddings": False,
        "pad_token_id": None,
    }
    config = Qwen3_5TextConfig(**{**sizes, **changes})
    config.save_pretrained(folder)
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in AutoModelForCausalLM.from_config(config).state_dict().items()}
    header, offset = {}, 0
    for name, shape in shapes.items():
        stop = offset + 2 * shape.numel()
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, stop]}
        offset = stop
    encoded = encode_header(header)
    with open(folder / "model.safetensors", "wb") as stream:
        stream.write(encoded)
        stream.truncate(len(encoded) + offset)
    return offset


def documented(row):
    """The numbers of a row of the documentation's table, as written."""
    line = next(line for line in DOCS.splitlines() if line.startswith(f"| {row}"))
    return re.findall(r"\d[\d.]*", line.replace(" 000", "000"))


def test_the_27b_on_paper_is_what_the_code_plans(tmp_path):
    """Every number of the documentation's table, from the target's own shapes."""
    size = hollow_27b(tmp_path)
    decoder = Decoder(tmp_path, TensorFiles(tmp_path))
    decoder.check_complete()
    held, tokens = 300_000_000, 100_000
    needs = Needs(held=held, layer=4 * decoder.largest_layer, per_token=decoder.bytes_per_token, longest=1500)
    plan = plan_memory(needs, 16 * GB)
    assert plan.chunk_tokens == 2048
    assert documented("a layer of") == [f"{decoder.largest_layer / 1e6:.0f}", "32", f"{needs.layer / GB:.2f}"]
    chunk = 2048 * decoder.bytes_per_token / GB
    assert documented("a chunk of")[:2] == ["2048", f"{decoder.bytes_per_token / 1e3:.0f}"]
    assert documented("a chunk of")[-1] == f"{chunk:.2f}"
    halved = plan.expected - needs.layer / 2
    assert documented("**anonymous") == [f"{plan.expected / GB:.1f}", f"{halved / GB:.1f}", "16"]
    assert documented("residuals") == ["2", f"{4 * decoder.hidden_size * tokens / GB:.2f}"]
    ends = 4 * decoder.vocab_size * decoder.hidden_size
    taps = 2 * 5 * decoder.hidden_size * tokens
    assert documented("taps of 5")[1:] == ["16", f"{taps / GB:.1f}", f"{ends / GB:.1f}"]
    assert f"reads {size / GB - ends / 2 / GB:.0f} GB of weights" in DOCS
    with pytest.raises(Refused, match=r"1\.43 GiB, the longest text has 1500 tokens\. It takes 2\.\d\d GiB"):
        plan_memory(needs, 2 * GB)
    print(f"{size / GB:.1f} GB of weights; planned {size_text(plan.expected)} of 16 GB")


@pytest.mark.full
@pytest.mark.timeout(1500)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_layers_of_a_27b_run_within_4_gib(tmp_path):
    """24 of its 64 layers, four times the budget (nine times in float32): more of them take longer, not more memory.

    A small vocabulary, since embedding and head are never in memory either.
    """
    kinds = (["linear_attention"] * 3 + ["full_attention"]) * 6
    size = hollow_27b(tmp_path, vocab_size=4096, num_hidden_layers=24, layer_types=kinds)
    prompts = write_prompts(tmp_path / "prompts.jsonl", [24, 37], 4096)
    texts = tmp_path / "cache.partial" / "texts"
    texts.mkdir(parents=True)
    for index in range(2):  # as an earlier run would have them from a server
        (texts / f"{index:05d}.json").write_text('{"produced": [0, 0, 0]}')
    budget = 4 * 2**30
    options = ["--target", tmp_path, "--prompts", prompts, "--layers", "1,6,11,16,21", "--memory", budget]
    began, peak = time.monotonic(), 0
    with open(tmp_path / "said", "wb") as said:
        process = subprocess.Popen(
            [sys.executable, SCRIPT, *map(str, options), "--max-new-tokens", "3", "--out", str(tmp_path / "cache")],
            env={**QUIET, "OMP_NUM_THREADS": "2"},
            stdout=said,
            stderr=said,
            preexec_fn=limit_data(budget),
        )
        while process.poll() is None:
            peak = max(peak, anonymous_bytes(process.pid))
            time.sleep(0.05)
    assert process.returncode == 0, (tmp_path / "said").read_text()[-2000:]
    print(f"{size / GB:.1f} GB of weights, peak {peak / GB:.2f} GB, {time.monotonic() - began:.0f} s for 67 tokens")
    assert size > 4 * budget and peak < budget
    manifest = load_cache(tmp_path / "cache").manifest
    assert manifest["target"]["num_layers"] == 24 and manifest["engine"]["batching"] == "padded"
    assert manifest["greedy_check"]["tokens_not_greedy"] == 0
