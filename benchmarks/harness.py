"""How fast the evaluation harness is, against what it replaces, in one run, alternating.

Everything is made on the spot: a 0.5 B target of random weights, a 5-layer drafter of it (hidden 1024, block 16), and
texts that the target writes. The rival is the `dflash` package's own loop (pip install --no-deps dflash==0.1.0).
A random drafter is hardly ever right, so nearly every round yields one token; a round costs either side about the same
whatever is accepted, and tests hold longer rounds to be the same. Without --full the texts are 32 tokens long and the
rival does 2 of the 16 prompts: its time for all is scaled by rounds, and what is stated for 256 tokens by tokens.

On a busy machine wall time tells nothing: OMP_NUM_THREADS=1 with --clock cpu compares the CPU seconds of one thread.

Prints what was measured, then a line for each goal: name value goal ok|short.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "remote_payload" / "harness"))

import torch  # noqa: E402
from acceptance import Text  # noqa: E402
from cache import TAPS, Cache, file_facts, load_cache, save_ends, save_taps  # noqa: E402
from ddtree import build_tree  # noqa: E402
from drafter import Drafter, DrafterConfig  # noqa: E402
from drafter_config import FULL  # noqa: E402
from evaluate import Measuring, PromptMeasure, Settings  # noqa: E402
from journal import Journal  # noqa: E402
from loading import LoadedDrafter  # noqa: E402
from machine import matmul_rates, set_threads  # noqa: E402
from target import Head, TargetEnds  # noqa: E402

Row = tuple[str, "float | str", "float | str", bool]
LAYERS, HIDDEN, VOCABULARY, TAPPED = 28, 1024, 32768, (1, 7, 13, 19, 25)
PROMPTS, PROMPT_LENGTH, WHOLE = 16, 64, 256
CONTEXT = 511
CONFIG = DrafterConfig(
    hidden_size=HIDDEN,
    num_layers=5,
    heads=16,
    kv_heads=8,
    head_dim=128,
    intermediate_size=3072,
    vocab_size=VOCABULARY,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    block_size=16,
    mask_token_id=VOCABULARY - 1,
    target_layer_ids=TAPPED,
    num_target_layers=LAYERS,
    layer_types=(FULL,) * 5,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--full", action="store_true", help="texts of 256 tokens, more rounds; about an hour on 2 cores"
    )
    parser.add_argument("--only", choices=("blocks", "tree", "loop", "extraction"), help="one part")
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall", help="what is compared (default wall)")
    options = parser.parse_args()
    global clock
    clock = CLOCKS[options.clock]
    print(f"{set_threads()} threads, torch {torch.__version__}, GFLOP/s at 512x512: {matmul_rates()}")
    parts: dict[str, Callable[[bool], list[Row]]] = {
        "blocks": block_rows,
        "tree": tree_rows,
        "loop": loop_rows,
        "extraction": extraction_rows,
    }
    rows = [row for name, part in parts.items() if options.only in (None, name) for row in part(options.full)]
    for name, value, goal, ok in rows:
        shown = value if isinstance(value, str) else f"{value:.2f}"
        print(f"{name} {shown} {goal} {'ok' if ok else 'short'}")


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
clock = CLOCKS["wall"]


def seconds(work: Callable[[], Any]) -> float:
    began = clock()
    work()
    return clock() - began


def alternate(works: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each work in each round; a round before them warms up."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds + 1):
        for name, work in works.items():
            spent = seconds(work)
            if turn:
                found[name].append(spent)
    return found


def ratio(over: list[float], under: list[float], factor: float = 1.0) -> float:
    """Median of the rounds' ratios."""
    return factor * statistics.median(a / b for a, b in zip(over, under, strict=True))


def random_drafter(generator: torch.Generator) -> Drafter:
    state = {
        name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) / shape[-1] ** 0.5
        for name, shape in CONFIG.state_shapes().items()
    }
    with torch.device("meta"):
        model = Drafter(CONFIG)
    model.load_state_dict(state, assign=True)
    return model.eval().requires_grad_(False)


@torch.inference_mode()
def block_rows(full: bool) -> list[Row]:
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
    spent = alternate(works, 9 if full else 5)
    for name, each in spent.items():
        count = blocks if name.startswith("blocks") else 1
        print(f"  {name:<20} {statistics.median(each) / count * 1e3:8.1f} ms{' a block' if count > 1 else ''}")
    flops = 2 * CONFIG.block_size * sum(weight.numel() for layer in model.layers for weight in layer.parameters())
    flops += 4 * CONFIG.num_layers * CONFIG.heads * CONFIG.head_dim * CONFIG.block_size * (CONTEXT + CONFIG.block_size)
    share = ratio(spent["product"], spent["blocks"], blocks * flops / (2 * 2048**3))
    faster = ratio(spent["one from scratch"], spent["blocks and head"], blocks)
    if "dflash from scratch" in spent:
        against = ratio(spent["dflash from scratch"], spent["blocks and head"], blocks)
        print(f"  against dflash from scratch: {against:.2f}x")
    return [("block_against_scratch", faster, 4.5, faster >= 4.5), ("block_share_of_mm", share, 0.65, share >= 0.65)]


@torch.inference_mode()
def tree_rows(full: bool) -> list[Row]:
    """A tree of 256 nodes from 15 rows of 152k logits, beyond the top-K; flat and peaked rows."""
    worst = 0.0
    for peak in (1.0, 3.0, 8.0):
        logits = torch.randn(15, 151936, generator=torch.Generator().manual_seed(0)) * peak
        best = logits.log_softmax(-1).topk(256)
        rows = best.values.tolist(), best.indices.tolist()
        worst = max(worst, statistics.median(seconds(lambda rows=rows: build_tree(*rows, 256)) for _ in range(20)))
    return [("ddtree_build_ms", worst * 1e3, 10, worst < 0.010)]


def dflash() -> Any:
    try:
        import dflash.model
    except ImportError:
        print("  the dflash package is not installed: no rival (pip install --no-deps dflash==0.1.0)")
        return None
    return dflash.model


def package_drafter(oracle: Any, model: Drafter) -> Any:
    from transformers import Qwen3Config

    document = {key: each for key, each in CONFIG.to_hf().items() if key not in ("architectures", "model_type")}
    with torch.device("meta"):
        rival = oracle.DFlashDraftModel(Qwen3Config(**document, attn_implementation="sdpa"))
    rival.load_state_dict(model.state_dict(), assign=True)
    rival.rotary_emb = type(rival.rotary_emb)(rival.config)  # its buffers are computed, not stored
    return rival.eval()


@dataclass(frozen=True, eq=False)
class Stage:
    """A target, a drafter of it and prompts."""

    target: Any
    ends: TargetEnds
    loaded: LoadedDrafter
    prompts: torch.Tensor


def stage() -> Stage:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    generator = torch.Generator().manual_seed(0)
    with torch.device("meta"):
        target = Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=VOCABULARY,
                hidden_size=HIDDEN,
                intermediate_size=3072,
                num_hidden_layers=LAYERS,
                num_attention_heads=16,
                num_key_value_heads=8,
                head_dim=128,
                tie_word_embeddings=False,
                attn_implementation="sdpa",
            )
        )
    shapes = {name: weight.shape for name, weight in target.named_parameters()}
    state = {
        name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) / shape[-1] ** 0.5
        for name, shape in shapes.items()
    }
    target.load_state_dict(state, assign=True)
    target.model.rotary_emb = type(target.model.rotary_emb)(target.config)
    target.eval().requires_grad_(False)
    ends = TargetEnds(target.model.embed_tokens.weight, target.lm_head.weight)
    loaded = LoadedDrafter(CONFIG, random_drafter(generator), Head.of_target(ends, CONFIG), Path("drafter"), "", None)
    prompts = torch.randint(3, VOCABULARY - 1, (PROMPTS, PROMPT_LENGTH), generator=generator)
    return Stage(target, ends, loaded, prompts)


@torch.inference_mode()
def taps_of(target: Any, ids: torch.Tensor) -> torch.Tensor:
    """Taps [N, S, K*H] of texts of equal length, eight at a time; nothing above the last layer's norm is run."""
    taps = []
    for some in ids.split(8):
        states = target.model(some, output_hidden_states=True, use_cache=False).hidden_states
        taps.append(torch.cat([states[layer + 1] for layer in TAPPED], dim=-1))
    return torch.cat(taps)


@torch.inference_mode()
def generate(target: Any, prompts: torch.Tensor, count: int) -> torch.Tensor:
    """Greedy texts of all prompts together, with their hidden states handed out along the way."""
    pending, past, produced = prompts, None, [prompts]
    for _ in range(count):
        out = target(pending, past_key_values=past, use_cache=True, logits_to_keep=1, output_hidden_states=True)
        pending, past = out.logits[:, -1].argmax(-1, keepdim=True), out.past_key_values
        produced.append(pending)
    return torch.cat(produced, dim=1)


def save_cache(folder: Path, scene: Stage, ids: torch.Tensor, taps: torch.Tensor) -> Cache:
    save_ends(scene.ends, folder / "target.safetensors")
    prompts = []
    for index, text in enumerate(ids.tolist()):
        shard = f"shards/{index:05d}.safetensors"
        save_taps(taps[index], folder / shard, "float32")
        words = {"token_ids": text, "prompt_length": PROMPT_LENGTH, "argmax": text[PROMPT_LENGTH:]}
        prompts.append({"id": str(index), "data_set": "made", **words, "shard": shard})
    facts = {"id": "made", "digest": "", "num_layers": LAYERS, "hidden_size": HIDDEN, "vocab_size": VOCABULARY}
    manifest = {
        "schema": 1,
        "target": facts,
        "target_layer_ids": list(TAPPED),
        "taps": TAPS,
        "dtype": "float32",
        "engine": {},
        "template": "ids",
        "thinking": False,
        "prompts_digest": "",
        "prompts": prompts,
        "files": file_facts(folder, iter(["target.safetensors", *(each["shard"] for each in prompts)])),
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return load_cache(folder)


def loop_rows(full: bool) -> list[Row]:
    """A whole evaluation against the package's own loop on the same prompts."""
    oracle = dflash()
    if oracle is None:
        return []
    oracle._cuda_time = clock  # it would synchronise a GPU to measure
    tokens = WHOLE if full else 32
    scene = stage()
    rival = package_drafter(oracle, scene.loaded.model)
    asked = range(0, PROMPTS, 1 if full else 8)
    online: list[Any] = []

    def ask(indices: range) -> None:
        for index in indices:
            prompt = scene.prompts[index : index + 1]
            online.append(oracle.dflash_generate(rival, scene.target, prompt, tokens, None, return_stats=True))

    rival_s = seconds(lambda: ask(asked[: len(asked) // 2]))
    texts: list[torch.Tensor] = []
    generated_s = seconds(lambda: texts.append(generate(scene.target, scene.prompts, tokens)))
    rival_s += seconds(lambda: ask(asked[len(asked) // 2 :]))
    ids = texts[0].clone()
    for index, answer in zip(asked, online, strict=True):
        ids[index] = answer.output_ids[0]
    taps: list[torch.Tensor] = []
    taps_s = seconds(lambda: taps.append(taps_of(scene.target, ids)))
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as name:
        cache = save_cache(Path(name), scene, ids, taps[0])
        runs = [evaluation(scene, cache, Path(name)) for _ in range(1 if full else 3)]
    ours_s = statistics.median(spent for spent, _ in runs)
    measures = [runs[0][1][index] for index in asked]
    same, apart = agreement(online, measures, [cache.prompts[index].text for index in asked])
    lengths = [length for answer in online for length in answer.acceptance_lengths]
    rounds = sum(len(measure.rounds) for measure in runs[0][1])
    prefill = sum(answer.time_to_first_token for answer in online) * PROMPTS / len(asked)
    loop = (rival_s - prefill * len(asked) / PROMPTS) / len(lengths) * rounds
    scale = (WHOLE - 1) / (tokens - 1)
    rival_whole = prefill + loop * scale
    known = ours_s * scale + taps_s * (PROMPT_LENGTH + WHOLE) / ids.shape[1]
    print(f"  {PROMPTS} prompts x {tokens} tokens, {rounds} rounds, mean length {statistics.fmean(lengths):.2f}")
    print(f"  dflash loop {prefill + loop:.1f} s ({prefill:.1f} of it prefill; {len(asked)} prompts measured)")
    print(f"  evaluation with cached taps {ours_s:.2f} s, {ours_s / rounds * 1e3:.1f} ms a round")
    print(f"  taps {taps_s:.1f} s; text and taps generated {generated_s:.1f} s")
    print(f"  accepted lengths: {same} rounds the same; {apart} in its shortened last blocks, told apart")
    print(f"  with the text generated too: {rival_whole / ((ours_s + generated_s) * scale):.2f}x")
    cached, with_taps = (prefill + loop) / ours_s, rival_whole / known
    return [
        ("evaluation_cached_taps", cached, 12, cached >= 12),
        ("evaluation_taps_in_run", with_taps, 5, with_taps >= 5),
    ]


def evaluation(scene: Stage, cache: Cache, folder: Path) -> tuple[float, list[PromptMeasure]]:
    """Seconds of the walks over a cache, from its files to their rounds."""
    settings = Settings(budgets=(), max_anchors=0)
    journal = Journal(folder / "journal.jsonl", "", resume=False)
    began = clock()
    measures = Measuring(
        "drafter", scene.loaded, scene.ends, cache, settings, journal, lambda count, role, earlier: None
    ).run()
    return clock() - began, measures


def agreement(online: list[Any], measures: list[PromptMeasure], texts: list[Text]) -> tuple[int, int]:
    """Rounds with equal accepted lengths, and rounds that the loop drafted with fewer masks. Others end the run."""
    same = apart = 0
    for answer, measure, text in zip(online, measures, texts, strict=True):
        anchor, ours = text.prompt_length, {each.anchor: each for each in measure.rounds}
        for length in answer.acceptance_lengths:
            room = len(text.token_ids) - 1 - anchor
            if room < CONFIG.block_size - 1:
                apart += 1
            elif min(ours[anchor].length, room) == length:
                same += 1
            elif measure.near_ties == 0:
                sys.exit(f"at {anchor} the loop accepted {length}, the evaluation {ours[anchor].length}")
            anchor += length
    return same, apart


def extraction_rows(full: bool) -> list[Row]:
    """The rows of extract_hidden_states.py, measured in a file of their own."""
    try:
        from extraction_rows import rows
    except ImportError:
        return []
    return list(rows(full))


if __name__ == "__main__":
    main()
