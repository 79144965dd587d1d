"""How fast the evaluation harness is, against what it replaces, in one run, alternating.

Everything is made on the spot: a 0.5 B target of random weights, a 5-layer drafter of it (hidden 1024, block 16), texts
that the target writes, a 1.5 B target for memory. The rival is the `dflash` package's own loop (pip install --no-deps
dflash==0.1.0), and transformers' forward pass.

What the default run, made for 10 minutes on 2 cores, scales down (--full does not; about an hour):
  loop        texts of 32 tokens in place of 256, and the rival does 2 of the 16 prompts: its time is scaled by rounds
              for all of them, and what is stated for 256 tokens by tokens. A random drafter is hardly ever right, so
              nearly every round yields one token; a round costs either side about the same whatever is accepted, and
              tests hold longer rounds to be the same.
  extraction  speed on 8 of the target's 28 layers and a quarter of its vocabulary, 1024 tokens of equal and about 2200
              of unequal lengths; memory on the whole 1.5 B target with 256 tokens.

On a busy machine wall time tells nothing: OMP_NUM_THREADS=1 with --clock cpu compares the CPU seconds of one thread.

Prints what was measured, then a line for each goal: name value goal ok|short. What can't be measured is short.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "remote_payload" / "harness"))

import torch  # noqa: E402
from ddtree import build_tree  # noqa: E402
from extraction_rows import extraction_rows  # noqa: E402
from harness_models import CONFIG, HIDDEN, VOCABULARY, dflash, package_drafter, random_drafter  # noqa: E402
from loop_rows import loop_rows  # noqa: E402
from machine import set_threads  # noqa: E402
from target import Head  # noqa: E402
from timing import CLOCKS, Measure, Row, at_least, ratio  # noqa: E402

CONTEXT = 511


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="nothing scaled down; about an hour on 2 cores")
    parser.add_argument("--only", choices=sorted(PARTS), help="one part")
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall", help="what is compared (default wall)")
    parser.add_argument("--rounds", type=int, help="of what takes turns (3 or 5, more with --full)")
    parser.add_argument("--rivals", type=int, choices=(2, 4, 8, 16), help="prompts of 16 that the rival's loop does")
    options = parser.parse_args()
    print(f"{set_threads()} threads, torch {torch.__version__}, GFLOP/s at 512x512: {matmul_rates()}", flush=True)
    measure, rows = Measure(options.full, CLOCKS[options.clock], options.rounds, options.rivals), []
    for name, part in PARTS.items():
        if options.only in (None, name):
            began = time.monotonic()
            print(f"{name}:", flush=True)
            rows += part(measure)
            print(f"  {time.monotonic() - began:.0f} s", flush=True)
    for row in rows:
        print(row)


def matmul_rates(size: int = 512) -> dict[str, float]:
    """GFLOP/s of a square product in each arithmetic on this CPU, best of three: why float32 is computed in."""
    rates = {}
    for dtype in (torch.float32, torch.bfloat16):
        matrix = torch.ones(size, size, dtype=dtype)
        fastest = min(Measure().seconds(lambda matrix=matrix: torch.mm(matrix, matrix)) for _ in range(3))
        rates[str(dtype).removeprefix("torch.")] = round(2e-9 * size**3 / fastest, 1)
    return rates


@torch.inference_mode()
def block_rows(measure: Measure) -> list[Row]:
    """A drafted block of many against one anchor from scratch, and against the machine's own matrix product."""
    generator = torch.Generator().manual_seed(0)
    model, blocks, texts = random_drafter(generator), 64, 16
    head = Head(torch.randn(VOCABULARY, HIDDEN, generator=generator))
    taps = torch.randn(CONTEXT, CONFIG.taps_size, generator=generator)
    contexts = [model.context_kv(model.context(taps))] * texts
    embeds = torch.randn(blocks, CONFIG.block_size, HIDDEN, generator=generator)
    anchors = torch.full((blocks,), CONTEXT)
    square = torch.randn(2048, 2048, generator=generator)

    def body() -> torch.Tensor:
        return model.blocks(contexts, [blocks // texts] * texts, embeds, anchors)

    def scratch() -> None:
        hidden = model(model.context(taps), embeds[:1], anchors[:1])
        head.best(hidden[0, 1:], 1, normalised=False)

    works: dict[str, Callable[[], Any]] = {
        "product": lambda: torch.mm(square, square),
        "one from scratch": scratch,
        "blocks": body,
        "blocks and head": lambda: head.best(body()[:, 1:].flatten(0, 1), 1, normalised=False),
    }
    if (oracle := dflash()) is not None:
        rival = package_drafter(oracle, model)
        positions = torch.arange(CONTEXT + CONFIG.block_size)[None]

        def package() -> None:
            hidden = rival(position_ids=positions, noise_embedding=embeds[:1], target_hidden=taps[None])
            (hidden[0, 1:] @ head.weight_VH.T).argmax(-1)

        works["dflash from scratch"] = package
    spent = measure.alternate(works, 9 if measure.full else 5)
    for name, each in spent.items():
        count = blocks if name.startswith("blocks") else 1
        print(f"  {name:<20} {statistics.median(each) / count * 1e3:8.1f} ms{' a block' if count > 1 else ''}")
    flops = 2 * CONFIG.block_size * sum(weight.numel() for layer in model.layers for weight in layer.parameters())
    flops += 4 * CONFIG.num_layers * CONFIG.heads * CONFIG.head_dim * CONFIG.block_size * (CONTEXT + CONFIG.block_size)
    share = ratio(spent["product"], spent["blocks"], blocks * flops / (2 * 2048**3))
    if "dflash from scratch" in spent:
        against = ratio(spent["dflash from scratch"], spent["blocks and head"], blocks)
        print(f"  against dflash from scratch: {against:.2f}x")
    return [
        at_least("block_against_scratch", ratio(spent["one from scratch"], spent["blocks and head"], blocks), 4.5),
        Row("block_share_of_mm", f"{share:.0%}", ">=65%", share >= 0.65),
    ]


@torch.inference_mode()
def tree_rows(measure: Measure) -> list[Row]:
    """A tree of 256 nodes from 15 rows of 152k logits, beyond the top-K; the slowest of flat and peaked rows."""
    worst = 0.0
    for peak in (1.0, 3.0, 8.0):
        logits = torch.randn(15, 151936, generator=torch.Generator().manual_seed(0)) * peak
        best = logits.log_softmax(-1).topk(256)
        rows = best.values.tolist(), best.indices.tolist()
        spent = [measure.seconds(lambda rows=rows: build_tree(*rows, 256)) for _ in range(20)]
        worst = max(worst, statistics.median(spent))
    return [Row("ddtree_build", f"{worst * 1e3:.2f}ms", "<10ms", worst < 0.010)]


PARTS: dict[str, Callable[[Measure], list[Row]]] = {
    "blocks": block_rows,
    "tree": tree_rows,
    "loop": loop_rows,
    "extraction": extraction_rows,
}

if __name__ == "__main__":
    main()
