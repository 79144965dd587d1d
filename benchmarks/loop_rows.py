"""A whole evaluation against the dflash package's own loop on the same prompts, the same lengths accepted."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from acceptance import Text
from cache import TAPS, Cache, file_facts, load_cache, save_ends, save_taps
from evaluate import Measuring, PromptMeasure, Settings
from harness_models import (
    CONFIG,
    HIDDEN,
    LAYERS,
    TAPPED,
    VOCABULARY,
    dflash,
    package_drafter,
    random_drafter,
    random_weights,
)
from journal import Journal
from loading import LoadedDrafter
from target import Head, TargetEnds
from timing import Measure, Row, at_least, not_measured

PROMPTS, PROMPT_LENGTH, WHOLE = 16, 64, 256
GOALS = {"evaluation_cached_taps": 12.0, "evaluation_taps_in_run": 5.0, "evaluation_text_in_run": 5.0}


@dataclass(frozen=True, eq=False)
class Stage:
    """A target, a drafter of it and prompts."""

    target: Any
    ends: TargetEnds
    loaded: LoadedDrafter
    prompts: torch.Tensor


def loop_rows(measure: Measure) -> list[Row]:
    """The loop and the evaluation take turns: the loop's first prompts, ours, the loop's other prompts, ours again."""
    oracle = dflash()
    if oracle is None:
        return [not_measured(name, f">={goal:g}x") for name, goal in GOALS.items()]
    oracle._cuda_time = measure.clock  # it would synchronise a GPU to measure
    tokens = WHOLE if measure.full else 32
    scene = stage()
    rival = package_drafter(oracle, scene.loaded.model)
    asked = range(0, PROMPTS, PROMPTS // (measure.rivals or (PROMPTS if measure.full else 2)))
    online: dict[int, Any] = {}

    def ask(indices: range) -> None:
        for index in indices:
            prompt = scene.prompts[index : index + 1]
            online[index] = oracle.dflash_generate(rival, scene.target, prompt, tokens, None, return_stats=True)

    found: dict[str, torch.Tensor] = {}
    generated_s = measure.seconds(lambda: found.update(ids=generate(scene.target, scene.prompts, tokens)))
    taps_s = measure.seconds(lambda: found.update(taps=taps_of(scene.target, found["ids"])))
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as name:
        cache = save_cache(Path(name), scene, found["ids"], found["taps"])
        rival_s, runs = 0.0, []
        for part in (asked[: len(asked) // 2], asked[len(asked) // 2 :]):
            rival_s += measure.seconds(lambda part=part: ask(part))
            runs.append(evaluation(measure, scene, cache, Path(name)))
    ours_s = statistics.fmean(spent for spent, _ in runs)
    measures = runs[0][1]
    same, apart = agreement(online, measures, [prompt.text for prompt in cache.prompts])
    lengths = [length for answer in online.values() for length in answer.acceptance_lengths]
    rounds = sum(len(each.rounds) for each in measures)
    prefill = sum(answer.time_to_first_token for answer in online.values()) * PROMPTS / len(asked)
    loop_s = (rival_s - prefill * len(asked) / PROMPTS) / len(lengths) * rounds
    print(f"  {PROMPTS} prompts x {tokens} tokens, {rounds} rounds, mean length {statistics.fmean(lengths):.2f}")
    print(f"  dflash loop {prefill + loop_s:.1f} s ({prefill:.1f} of it prefill; {len(asked)} prompts measured)")
    print(f"  evaluation with cached taps {ours_s:.2f} s, {ours_s / rounds * 1e3:.1f} ms a round")
    print(f"  taps {taps_s:.1f} s; text and taps generated {generated_s:.1f} s")
    print(f"  accepted lengths: {same} rounds the same; {apart} in its shortened last blocks, told apart")
    scale = (WHOLE - 1) / (tokens - 1)  # to texts of 256 tokens; no scale with --full
    rival_whole, ours_whole = prefill + loop_s * scale, ours_s * scale
    taps_whole = taps_s * (PROMPT_LENGTH + WHOLE) / found["ids"].shape[1]
    ratios = (
        (prefill + loop_s) / ours_s,
        rival_whole / (ours_whole + taps_whole),
        rival_whole / (ours_whole + generated_s * scale),
    )
    return [at_least(name, value, goal) for value, (name, goal) in zip(ratios, GOALS.items(), strict=True)]


def stage() -> Stage:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    generator = torch.Generator().manual_seed(0)
    config = Qwen3Config(
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
    with torch.device("meta"):
        target = Qwen3ForCausalLM(config)
    shapes = {name: weight.shape for name, weight in target.named_parameters()}
    target.load_state_dict(random_weights(shapes, generator), assign=True)
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


def evaluation(measure: Measure, scene: Stage, cache: Cache, folder: Path) -> tuple[float, list[PromptMeasure]]:
    """Seconds of the walks over a cache, from its files to their rounds."""
    settings = Settings(budgets=(), max_anchors=0)
    journal = Journal(folder / "journal.jsonl", "", resume=False)
    work = Measuring("drafter", scene.loaded, scene.ends, cache, settings, journal, lambda count, role, earlier: None)
    found: list[PromptMeasure] = []
    return measure.seconds(lambda: found.extend(work.run())), found


def agreement(online: dict[int, Any], measures: list[PromptMeasure], texts: list[Text]) -> tuple[int, int]:
    """Rounds with equal accepted lengths, and rounds that the loop drafted with fewer masks. Others end the run."""
    same = apart = 0
    for index, answer in online.items():
        measured, text = measures[index], texts[index]
        if answer.output_ids[0].tolist() != list(text.token_ids):
            print(
                f"  prompt {index}: the loop wrote another text than the target in a batch (a near tie): not compared"
            )
            continue
        anchor, ours = text.prompt_length, {each.anchor: each for each in measured.rounds}
        for length in answer.acceptance_lengths:
            room = len(text.token_ids) - 1 - anchor
            if room < CONFIG.block_size - 1:
                apart += 1
            elif min(ours[anchor].length, room) == length:
                same += 1
            elif measured.near_ties == 0:
                sys.exit(f"at {anchor} the loop accepted {length}, the evaluation {ours[anchor].length}")
            anchor += length
    return same, apart
