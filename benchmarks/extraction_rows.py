"""Extraction of hidden states against transformers with everything in memory: wall time and memory.

    python benchmarks/extraction_rows.py [--full]

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
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
HARNESS = ROOT / "remote_payload" / "harness"
sys.path[:0] = [str(HARNESS), str(ROOT / "tests" / "harness")]

import torch  # noqa: E402
from decoder import Decoder  # noqa: E402
from hidden_states import LayerRun, Reading  # noqa: E402
from safetensors_reader import TensorFiles  # noqa: E402
from synthetic import write_target  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

HEADS = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 65536}
SMALL = {**HEADS, "hidden_size": 1024, "intermediate_size": 3072}  # 0.5 B with 28 layers
BIG = {**HEADS, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28}  # 1.5 B
CHUNK = 2048
Row = tuple[str, str, str, bool]


def rows(full: bool) -> list[Row]:
    """(name, value, goal, whether it is reached). `full`: all layers, more tokens, and transformers' memory too."""
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as name:
        folder = Path(name)
        return [*speed_rows(folder / "small", full), *memory_rows(folder / "big", full)]


def speed_rows(folder: Path, full: bool) -> list[Row]:
    write_target(folder, **SMALL, num_hidden_layers=28 if full else 8)
    equal = texts_of([512] * 16 if full else [256] * 4)
    ragged = texts_of(spread(64, 256, 14))
    found: list[Row] = []
    for kind, texts, goal in (("equal_lengths", equal, 1.05), ("ragged_lengths", ragged, 1 / 1.2)):
        ours, theirs = in_turns(folder, texts, rounds=5 if full else 3)
        ratio = median(a / b for a, b in zip(ours, theirs, strict=True))
        print(f"{kind}: {shown(ours)} s against {shown(theirs)} s, {sum(map(len, texts))} tokens", flush=True)
        found.append((f"extraction_wall_{kind}", f"{ratio:.2f}x", f"<={goal:.2f}x", ratio <= goal))
    return found


def in_turns(folder: Path, texts: Sequence[tuple[int, ...]], rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of either side, alternating; the first round of each is a warm-up that isn't counted."""
    layers = tuple(range(1, layers_of(folder) - 1, 4))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()
    decoder = Decoder(folder, TensorFiles(folder))
    ours, theirs = [], []
    for _ in range(rounds + 1):
        ours.append(timed(lambda: stream(decoder, texts, layers, folder / f"work{len(ours)}")))
        theirs.append(timed(lambda: in_memory(model, texts, layers)))
    return ours[1:], theirs[1:]


def layers_of(folder: Path) -> int:
    return int(json.loads((folder / "config.json").read_text())["num_hidden_layers"])


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def stream(decoder: Decoder, texts: Sequence[tuple[int, ...]], layers: tuple[int, ...], work: Path) -> None:
    reading = Reading(tuple(texts), layers, CHUNK, decoder.packed)
    run = LayerRun(decoder, reading, 2, work, lambda *step: None)
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


def memory_rows(folder: Path, full: bool) -> list[Row]:
    """The 1.5 B target by the command itself, under a limit on all memory that it may reserve."""
    write_target(folder, **BIG)
    texts = texts_of([256] * 4 if full else [64] * 4)
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
    peak, code = peak_of([*map(str, command), "--max-new-tokens", "16"], limit=int(1.2 * 2**30))
    found = [
        ("extraction_memory_1.5B", f"{peak / 1e9:.2f}GB", "<=1.00GB", code == 0 and peak <= 1e9),
        ("extraction_under_rlimit_data_1.2GiB", "passes" if code == 0 else f"exit_{code}", "passes", code == 0),
    ]
    if full:
        load = (
            "from transformers import AutoModelForCausalLM as M; import sys, torch; ids = torch.zeros(4, 256).long();"
        )
        load += "m = M.from_pretrained(sys.argv[1], dtype=torch.float32)\nwith torch.no_grad(): m(ids, use_cache=False)"
        theirs, _ = peak_of([sys.executable, "-c", load, str(folder)], limit=None)
        print(f"transformers fills {theirs / 1e9:.2f} GB for the same target")
    return found


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
    return [tuple(torch.randint(0, HEADS["vocab_size"], (n,), generator=generator).tolist()) for n in lengths]


def spread(low: int, high: int, count: int) -> list[int]:
    """Lengths drawn evenly between two."""
    return torch.randint(low, high + 1, (count,), generator=torch.Generator().manual_seed(6)).tolist()


def shown(seconds: Sequence[float]) -> str:
    return f"{median(seconds):.1f} ({min(seconds):.1f}-{max(seconds):.1f})"


def main() -> None:
    for name, value, goal, reached in rows(full="--full" in sys.argv[1:]):
        print(name, value, goal, "ok" if reached else "short")


if __name__ == "__main__":
    main()
