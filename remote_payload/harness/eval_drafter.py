"""Measure how many tokens of a DFlash drafter the target accepts, on the CPU, from a cache of hidden states.

    python eval_drafter.py --drafter CHECKPOINT --cache CACHE --out eval_results.json
    python eval_drafter.py --drafter CHECKPOINT --cache CACHE --baseline DIR --budgets 16,64,256 --out DIR

CHECKPOINT is a Hugging Face or speculators folder, a .safetensors file, or a torch .pt file; where it carries no
configuration, name its config.json with --config. CACHE comes from extract_hidden_states.py. The headline is the
acceptance length: tokens per target pass, the target's own one included, as a mean over prompts of the mean over the
rounds that greedy decoding goes through ("walk, macro"). No target forward is needed.

With --baseline both drafters are measured on the same anchors, and the paired difference is judged: better, worse, or
no difference shown, with how many prompts would settle it. Before the measuring a few anchors are drafted with each
convention of the configuration changed; one that scores clearly higher is a "probable config mismatch". Rounds that the
two best logits decide by less than 1e-4 are printed as near ties: another machine may decide them otherwise. Censored
rounds, which the cached text can't decide, are counted and in no mean.

Writes the result (whole, at the end), progress.jsonl beside it, and until the end a journal from which the same command
with --resume goes on after a kill, to the same result.

Exits with 0: done; 2: refused, with a sentence; 130: interrupted; 1: a bug, with its traceback.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import memory
import safetensors
from cache import Cache, load_cache
from evaluate import Measuring, PromptMeasure, Settings
from files import digest_of, read_json, write_json
from journal import Journal
from loading import LoadedDrafter, load_drafter, projection_facts
from machine import require_cpu, set_threads, versions
from mutations import check
from paired import compare
from progress import Progress
from refusal import Refused
from summary import summarise
from table import result_table, suspicion
from target import TargetEnds

SCHEMA = 1


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    try:
        require_cpu()
        evaluate(arguments)
    except (Refused, OSError) as error:
        print(f"eval_drafter: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("eval_drafter: interrupted; --resume goes on from here", file=sys.stderr)
        return 130
    return 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--drafter", type=Path, required=True, metavar="CHECKPOINT", help="the drafter to measure")
    add("--cache", type=Path, required=True, metavar="CACHE", help="hidden states of the target's texts")
    add("--out", type=Path, required=True, metavar="FILE", help="the result, or a folder to write it in")
    add("--config", type=Path, metavar="JSON", help="the drafter's config.json, where its file carries none")
    add("--baseline", type=Path, metavar="CHECKPOINT", help="another drafter to measure on the same anchors")
    add("--baseline-config", type=Path, metavar="JSON", help="the baseline's config.json, likewise")
    add(
        "--budgets",
        type=_budgets,
        default=Settings().budgets,
        metavar="16,64,256",
        help="nodes of the draft trees (DDTree), the root not counted, or none (default 16,64,256). With few nodes a "
        "tree gives up depth for width and can do worse than the plain block",
    )
    add(
        "--max-anchors",
        type=_count_or_none,
        metavar="N",
        help="anchors per text of the all-anchor statistics (default: all; 0: only the walks, the fastest)",
    )
    add("--batch", type=_count, default=Settings().batch, metavar="N", help="blocks drafted together (default 64)")
    add("--texts", type=_count, default=Settings().texts, metavar="N", help="texts that advance together (default 32)")
    add("--no-checks", action="store_true", help="leave out the check for a probable config mismatch")
    add("--resume", action="store_true", help="go on where the same command was killed")
    add("--device", choices=("cpu",), default="cpu", help="only the CPU; refuses to run where a GPU is visible")
    add("--progress", type=Path, metavar="FILE", help="default: progress.jsonl beside the result")
    return parser


def evaluate(arguments: argparse.Namespace) -> None:
    """The five steps, then the result. Raises `Refused` before any long work where an input is wrong."""
    started, threads = _now(), set_threads()
    out = arguments.out / "eval_results.json" if arguments.out.is_dir() else arguments.out
    out.parent.mkdir(parents=True, exist_ok=True)
    cache = load_cache(arguments.cache)
    ends = cache.load_ends()
    _say(1, "target", _target_line(cache, ends))
    ends = ends.with_wide_head((memory.available() or 0) // 4)
    drafters = {"drafter": load_drafter(arguments.drafter, ends, arguments.config)}
    if arguments.baseline is not None:
        drafters["baseline"] = load_drafter(arguments.baseline, ends, arguments.baseline_config)
    for role, loaded in drafters.items():
        _say(2, role, _drafter_line(loaded))
        cache.check_drafter(loaded.config)
    _say(3, "cache", _cache_line(cache))

    settings = Settings(
        budgets=arguments.budgets, max_anchors=arguments.max_anchors, batch=arguments.batch, texts=arguments.texts
    )
    key = evaluation_key(cache, drafters, settings, checks=not arguments.no_checks)
    if arguments.resume and out.exists() and read_json(out).get("provenance", {}).get("key") == key:
        print(f"{out}: already there, measured from the same files with the same settings")
        return
    journal = Journal(out.with_name(f"{out.stem}.journal.jsonl"), key, resume=arguments.resume)
    projections = {role: check_projection(role, loaded, cache) for role, loaded in drafters.items()}
    checks = {role: check_configuration(role, loaded, ends, cache, arguments) for role, loaded in drafters.items()}

    _say(5, "evaluate", f"{len(cache.prompts)} texts, {threads} threads, float32")
    anchors = sum(len(prompt.text.anchors) for prompt in cache.prompts)
    progress = Progress(anchors * len(drafters), arguments.progress or out.with_name("progress.jsonl"))
    measures: dict[str, list[PromptMeasure]] = {}
    for role, loaded in drafters.items():

        def advance(count: int, role: str, earlier: bool) -> None:
            progress.advance(count, role, "anchors", earlier=earlier)

        measures[role] = Measuring(role, loaded, ends, cache, settings, journal, advance).run()
    results = {role: summarise(each, settings.budgets) for role, each in measures.items()}
    for role, loaded in drafters.items():
        results[role] |= {
            "step": loaded.step,
            "drafter": drafter_facts(loaded),
            "projection": projections[role],
            "mutations": checks[role],
        }
    provenance = {
        "key": key,
        "cache": cache_facts(cache),
        "settings": asdict(settings),
        "device": arguments.device,
        "arithmetic": "float32",
        "threads": threads,
        "versions": {**versions(), "safetensors": safetensors.__version__},
        "started_at": started,
        "ended_at": _now(),
    }
    baseline = results.get("baseline")
    comparison = compare(*measures.values(), settings.budgets) if baseline else None
    document = {"schema": SCHEMA, **results["drafter"], "baseline": baseline, "comparison": comparison}
    write_json(out, {**document, "provenance": provenance})
    journal.remove()
    print(result_table(results["drafter"], baseline, comparison, settings.budgets))
    print(f"written to {out}")


def evaluation_key(cache: Cache, drafters: dict[str, LoadedDrafter], settings: Settings, *, checks: bool) -> str:
    """Names everything that decides the numbers."""
    files = {role: [loaded.sha256, asdict(loaded.config)] for role, loaded in drafters.items()}
    return digest_of([SCHEMA, cache.digest, files, asdict(settings), checks, versions()])


def check_configuration(
    role: str, loaded: LoadedDrafter, ends: TargetEnds, cache: Cache, arguments: argparse.Namespace
) -> dict[str, Any] | None:
    """Also step 4: would the drafter score higher with another convention?"""
    if arguments.no_checks:
        return None
    facts = check(loaded, ends, cache, arguments.batch, lambda name: print(f"  checking {name}", file=sys.stderr))
    for line in suspicion(facts):
        _say(4, role, line)
    return facts


def check_projection(role: str, loaded: LoadedDrafter, cache: Cache) -> dict[str, Any]:
    """Step 4: what fc and hidden_norm look like, and what they make of the first text's taps."""
    facts = projection_facts(loaded, cache.taps(cache.prompts[0], loaded.config.target_layer_ids))
    for name, fact in facts.items():
        _say(4, role, f"{name:<12} {fact['shape']!s:<14} mean {fact['mean']:+.4g}  std {fact['std']:.4g}")
    return facts


def drafter_facts(loaded: LoadedDrafter) -> dict[str, Any]:
    return {"file": str(loaded.file), "sha256": loaded.sha256, "config": asdict(loaded.config)}


def cache_facts(cache: Cache) -> dict[str, Any]:
    manifest = cache.manifest
    kept = ("target", "target_layer_ids", "taps", "dtype", "engine", "template", "thinking", "prompts_digest")
    return {"path": str(cache.folder), "digest": cache.digest, **{key: manifest[key] for key in kept}}


def _target_line(cache: Cache, ends: TargetEnds) -> str:
    head = "tied to it" if ends.tied else f"head {list(ends.head_VH.shape)} {_dtype(ends.head_VH)}"
    embedding = f"embedding {list(ends.embedding_VH.shape)} {_dtype(ends.embedding_VH)}"
    return f"{cache.manifest['target']['id']}: {embedding}, {head}"


def _drafter_line(loaded: LoadedDrafter) -> str:
    config = loaded.config
    count = sum(weight.numel() for weight in loaded.model.parameters())
    step = "" if loaded.step is None else f", step {loaded.step}"
    own = "" if config.draft_vocab_size is None else f", own head over {config.draft_vocab_size} tokens"
    return (
        f"{loaded.file}: {count / 1e6:.1f} M parameters, {config.num_layers} layers, block {config.block_size}, "
        f"taps {list(config.target_layer_ids)}, mask {config.mask_token_id}{own}{step}"
    )


def _cache_line(cache: Cache) -> str:
    tokens = sum(len(prompt.text.argmax) for prompt in cache.prompts)
    wrong = sum(
        token != choice
        for prompt in cache.prompts
        for token, choice in zip(prompt.text.token_ids[prompt.text.prompt_length :], prompt.text.argmax, strict=True)
    )
    return (
        f"{cache.folder}: {len(cache.prompts)} texts, {tokens} generated tokens ({wrong} not the target's choice), "
        f"layers {list(cache.target_layer_ids)}, {cache.manifest['dtype']}, "
        f"computed in {cache.manifest['engine'].get('arithmetic', 'float32')}"
    )


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _say(step: int, what: str, line: str) -> None:
    print(f"[{step}/5] {what:<9} {line}", flush=True)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _budgets(text: str) -> tuple[int, ...]:
    return () if text == "none" else tuple(sorted({_count(part) for part in text.split(",")}))


def _count(text: str) -> int:
    count = _count_or_none(text)
    if not count:
        raise argparse.ArgumentTypeError("expected a number from 1 up")
    return count


def _count_or_none(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number, not {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
