"""Extraction of hidden states against transformers with everything in memory: wall time and memory.

Both sides run in turns in one process with the same threads, in float32, and both give the taps and the greedy choices
of the same positions. transformers gets its best case: weights already in memory (its load is not counted), texts
sorted by length, padded on the right without a mask, at most 2048 tokens at a time, logits only where needed. The layer
stream reads its weights anew each time, from files that were written a moment ago.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HARNESS = ROOT / "remote_payload" / "harness"
sys.path[:0] = [str(HARNESS), str(ROOT / "tests" / "harness")]

import torch  # noqa: E402
from decoder import Decoder  # noqa: E402
from hidden_states import LayerRun, Reading  # noqa: E402
from safetensors_reader import TensorFiles  # noqa: E402
from synthetic import write_target  # noqa: E402
from timing import Measure, Row, ratio, shown  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from transformers.utils import logging  # noqa: E402

HEADS = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 65536}
SMALL = {**HEADS, "hidden_size": 1024, "intermediate_size": 3072}  # 0.5 B with 28 layers
BIG = {**HEADS, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28}  # 1.5 B
TOKENS = 16384  # ids that texts are made of
CHUNK = 2048
LIMIT = 1.2  # GiB that the extraction may reserve
IN_MEMORY = """
import sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
with torch.no_grad():
    model(torch.zeros(4, int(sys.argv[2])).long(), use_cache=False, logits_to_keep=1)
"""


def extraction_rows(measure: Measure) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as name:
        folder = Path(name)
        return [*speed_rows(folder / "small", measure), *memory_rows(folder / "big", measure)]


def speed_rows(folder: Path, measure: Measure) -> list[Row]:
    """A 0.5 B target; without --full 8 of its 28 layers and a quarter of its vocabulary: the head keeps its share."""
    scaled = {} if measure.full else {"num_hidden_layers": 8, "vocab_size": TOKENS}
    write_target(folder, **{**SMALL, "num_hidden_layers": 28, **scaled})
    equal = texts_of([512] * 16 if measure.full else [256] * 4)
    found: list[Row] = []
    for kind, texts in (("equal", equal), ("ragged", texts_of(spread(64, 256, 14)))):
        ours, theirs = in_turns(folder, texts, measure)
        print(f"  {kind} lengths: {shown(ours)} against {shown(theirs)}, {sum(map(len, texts))} tokens", flush=True)
        if kind == "equal":
            slower = ratio(ours, theirs)
            found.append(Row("extraction_wall_equal", f"{slower:.2f}x", "<=1.05x", slower <= 1.05))
        else:
            faster = ratio(theirs, ours)
            found.append(Row("extraction_ragged_faster", f"{faster:.2f}x", ">=1.2x", faster >= 1.2))
    return found


def in_turns(folder: Path, texts: Sequence[tuple[int, ...]], measure: Measure) -> tuple[list[float], list[float]]:
    """Seconds of either side, alternating, without the warm-up."""
    layers = tuple(range(1, layers_of(folder) - 1, 4))
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()
    decoder = Decoder(folder, TensorFiles(folder))
    works = {
        "ours": lambda: stream(decoder, texts, layers, Path(tempfile.mkdtemp(dir=folder))),
        "theirs": lambda: in_memory(model, texts, layers),
    }
    spent = measure.alternate(works, 5 if measure.full else 3)
    return spent["ours"], spent["theirs"]


def layers_of(folder: Path) -> int:
    return int(json.loads((folder / "config.json").read_text())["num_hidden_layers"])


def stream(decoder: Decoder, texts: Sequence[tuple[int, ...]], layers: tuple[int, ...], work: Path) -> None:
    reading = Reading(tuple(texts), layers, CHUNK, decoder.packed)
    run = LayerRun(decoder, reading, work, lambda *step: None)
    taps = {}
    run.run(decoder.num_layers - 1, lambda text, place, tap, durable: taps.update({(text, place): tap.clone()}))
    run.choose([range(len(text) // 4, len(text)) for text in texts])


@torch.inference_mode()
def in_memory(model: torch.nn.Module, texts: Sequence[tuple[int, ...]], layers: tuple[int, ...]) -> None:
    taps = {}
    for batch in batches(sorted(texts, key=len)):
        longest = max(map(len, batch))
        ids = torch.tensor([[*text, *[0] * (longest - len(text))] for text in batch])
        out = model.base_model(ids, output_hidden_states=True, use_cache=False)
        for row, text in enumerate(batch):
            for layer in layers:
                taps[text, layer] = out.hidden_states[layer + 1][row, : len(text)].clone()
        predicting = torch.cat([out[0][row, len(text) // 4 : len(text)] for row, text in enumerate(batch)])
        for part in predicting.split(256):
            model.lm_head(part).argmax(-1)


def batches(texts: Sequence[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """Sorted texts, at most CHUNK tokens with their padding together."""
    found: list[list[tuple[int, ...]]] = [[]]
    for text in texts:
        if found[-1] and (len(found[-1]) + 1) * len(text) > CHUNK:
            found.append([])
        found[-1].append(text)
    return found


def memory_rows(folder: Path, measure: Measure) -> list[Row]:
    """The 1.5 B target by the command itself, under a limit on all memory that it may reserve; transformers beside."""
    write_target(folder, **BIG)
    length = 256 if measure.full else 64
    texts = texts_of([length] * 4)
    prompts = folder / "prompts.jsonl"
    prompts.write_text(
        "\n".join(json.dumps({"id": str(i), "token_ids": text[:-16]}) for i, text in enumerate(texts)) + "\n"
    )
    kept = folder / "cache.partial" / "texts"  # the texts, as a server would have given them
    kept.mkdir(parents=True)
    for index, text in enumerate(texts):
        (kept / f"{index:05d}.json").write_text(json.dumps({"produced": list(text[-16:])}))
    options = ["--target", folder, "--layers", "1,7,13,19,25", "--prompts", prompts, "--memory", "1GB"]
    command = [sys.executable, HARNESS / "extract_hidden_states.py", *options, "--out", folder / "cache"]
    ours, code = peak_of([*map(str, command), "--max-new-tokens", "16"], limit=int(LIMIT * 2**30))
    theirs, _ = peak_of([sys.executable, "-c", IN_MEMORY, str(folder), str(length)], limit=None)
    print(f"  1.5 B target, {4 * length} tokens: {ours / 1e9:.2f} GB against {theirs / 1e9:.2f} GB of transformers")
    passes = code == 0
    return [
        Row("extraction_memory_1.5B", f"{ours / 1e9:.2f}GB", "<=1.00GB", passes and ours <= 1e9),
        Row(f"extraction_under_rlimit_data_{LIMIT}GiB", "passes" if passes else f"exit_{code}", "passes", passes),
    ]


def peak_of(command: list[str], limit: int | None) -> tuple[int, int]:
    """Most anonymous memory of a process, sampled, and its exit code."""

    def restrict() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=restrict)
    assert process.stderr is not None
    os.set_blocking(process.stderr.fileno(), False)
    peak, said = 0, b""
    while process.poll() is None:
        peak = max(peak, anonymous(process.pid))
        said = (said + (process.stderr.read() or b""))[-2000:]
        time.sleep(0.01)
    if process.returncode != 0:
        print(said.decode(errors="replace"))
    return peak, process.returncode


def anonymous(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon"))


def texts_of(lengths: Sequence[int]) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(5)
    return [tuple(torch.randint(0, TOKENS, (n,), generator=generator).tolist()) for n in lengths]


def spread(low: int, high: int, count: int) -> list[int]:
    """Lengths drawn evenly between two."""
    return torch.randint(low, high + 1, (count,), generator=torch.Generator().manual_seed(6)).tolist()
