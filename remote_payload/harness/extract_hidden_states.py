"""Build a hidden-state cache: a target's greedy texts and the hidden states that drafters read.

    python extract_hidden_states.py --target DIR --drafter DIR --out CACHE
    python extract_hidden_states.py --target DIR --layers 1,9,17,25,33 --prompts my.jsonl --out CACHE

Runs on the CPU, one prompt after the other. Interrupted, the same command goes on where it stopped. The cache appears
at --out when it is whole; until then it grows in a folder beside it. Exits with 0, or 2 and a sentence.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cache
import completions
from checkpoint_files import read_config
from drafter_config import DrafterConfig, check_taps
from files import digest_of, read_json, safetensors_of, sha256, write_json
from machine import require_cpu, set_threads, versions
from progress import Progress
from prompt_files import Prompt, PromptSet, read_prompts
from refusal import Refused
from target import TargetEnds, load_ends

DEMO = Path(__file__).parent / "prompts" / "demo.jsonl"


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """Everything that decides what a cache holds; the same settings give the same cache."""

    target: Path
    layer_ids: tuple[int, ...]
    prompts: PromptSet
    max_new_tokens: int
    thinking: bool
    dtype: str
    server: str | None
    target_digest: str

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "target_digest": self.target_digest,
            "target_layer_ids": list(self.layer_ids),
            "prompts_digest": self.prompts.digest,
            "template": self.prompts.template,
            "thinking": self.thinking,
            "dtype": self.dtype,
            "max_new_tokens": self.max_new_tokens,
            "text_engine": "sglang" if self.server else "transformers",
        }


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    try:
        require_cpu()
        set_threads()
        extract(plan(arguments), arguments.out)
    except (Refused, OSError) as error:
        print(f"extract_hidden_states: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("extract_hidden_states: interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--target", type=Path, required=True, metavar="DIR", help="Hugging Face folder of the target")
    add("--out", type=Path, required=True, metavar="CACHE", help="where the cache will be")
    layers = parser.add_mutually_exclusive_group(required=True)
    layers.add_argument("--layers", type=_layers, metavar="1,9,...", help="target layers to tap, counted from 0")
    layers.add_argument(
        "--drafter", type=Path, metavar="DIR", help="tap the layers that this drafter (config.json) reads"
    )
    add("--prompts", type=Path, default=DEMO, metavar="JSONL", help="id, data_set and prompt, messages or token_ids")
    add("--max-new-tokens", type=_count, default=256, metavar="N", help="longest completion (default 256)")
    add("--template", choices=("chat", "raw"), help="default: chat where the tokenizer has a template")
    add("--thinking", action="store_true", help="let the chat template ask for thinking")
    add("--dtype", choices=sorted(cache.DTYPES), default="float32", help="how taps are stored (default float32)")
    add("--server", metavar="URL", help="take completions from this SGLang server instead of computing them")
    return parser


def plan(arguments: argparse.Namespace) -> Extraction:
    """Check everything that can be checked before the target is loaded."""
    layer_ids = arguments.layers or DrafterConfig.from_hf(read_config(arguments.drafter)).target_layer_ids
    config = read_json(arguments.target / "config.json")
    layers = (config.get("text_config") or config).get("num_hidden_layers")
    if type(layers) is not int:
        raise Refused(f"{arguments.target}/config.json: has no num_hidden_layers: not a language model")
    check_taps(layer_ids, layers)
    prompts = read_prompts(arguments.prompts, arguments.target, arguments.template, arguments.thinking)
    return Extraction(
        target=arguments.target,
        layer_ids=layer_ids,
        prompts=prompts,
        max_new_tokens=arguments.max_new_tokens,
        thinking=arguments.thinking,
        dtype=arguments.dtype,
        server=arguments.server,
        target_digest=digest_of_target(arguments.target),
    )


def digest_of_target(folder: Path) -> str:
    """Names the target by its configuration and every byte of its weights."""
    files = {folder / "config.json", *safetensors_of(folder).values()}
    return digest_of({file.name: sha256(file) for file in files})


def extract(extraction: Extraction, out: Path) -> None:
    """Make the cache at `out`, or find it there."""
    if out.exists():
        _check_same(read_json(out / "manifest.json").get("settings"), extraction.settings, out)
        clear_away(out)
        print(f"{out}: already there, made with the same settings")
        return
    ends = load_ends(extraction.target)
    _check_ids(extraction.prompts, ends)
    growing = out.with_name(out.name + ".partial")
    (growing / "entries").mkdir(parents=True, exist_ok=True)
    if any((growing / "entries").iterdir()):
        _check_same(read_json(growing / "settings.json"), extraction.settings, growing)
    write_json(growing / "settings.json", extraction.settings)
    cache.save_ends(ends, growing / "target.safetensors")
    entries = extract_prompts(extraction, ends, growing)
    finish(extraction, ends, entries, growing)
    growing.rename(out)
    clear_away(out)
    wrong = sum(map(_not_greedy, entries))
    print(f"{out}: {len(entries)} texts, {sum(len(entry['argmax']) for entry in entries)} generated tokens")
    if wrong:
        print(f"warning: {wrong} of them are not the target's own choice here; rounds that meet them are censored")


def extract_prompts(extraction: Extraction, ends: TargetEnds, growing: Path) -> list[dict[str, Any]]:
    """Every prompt's entry of the manifest; taps and entry of each are on disk before the next begins."""
    prompts = extraction.prompts.prompts
    waiting = [index for index in range(len(prompts)) if not _entry_file(growing, index).exists()]
    progress = Progress(len(prompts), growing / "progress.jsonl")
    progress.skip(len(prompts) - len(waiting), "extract")
    if waiting:
        target = completions.load_target(extraction.target)
        complete = completer(extraction, target)
        for index in waiting:
            entry = extract_prompt(extraction, target, ends, complete, prompts[index], growing, index)
            write_json(_entry_file(growing, index), entry)
            progress.step("extract", f"{prompts[index].id}: {len(entry['argmax'])} tokens")
    return [read_json(_entry_file(growing, index)) for index in range(len(prompts))]


def completer(extraction: Extraction, target: completions.Target) -> completions.Complete:
    if extraction.server:
        return partial(completions.complete_by_server, extraction.server, target.stop_ids, extraction.max_new_tokens)
    return partial(target.complete, extraction.max_new_tokens)


def extract_prompt(
    extraction: Extraction,
    target: completions.Target,
    ends: TargetEnds,
    complete: completions.Complete,
    prompt: Prompt,
    growing: Path,
    index: int,
) -> dict[str, Any]:
    """Complete one prompt, store its taps, and return its entry of the manifest."""
    token_ids = (*prompt.token_ids, *complete(prompt.token_ids))
    taps_SK, argmax = target.read(token_ids, len(prompt.token_ids), extraction.layer_ids, ends)
    shard = f"shards/{index:05d}.safetensors"
    cache.save_taps(taps_SK, growing / shard, extraction.dtype)
    return {
        "id": prompt.id,
        "data_set": prompt.data_set,
        "token_ids": list(token_ids),
        "prompt_length": len(prompt.token_ids),
        "argmax": list(argmax),
        "shard": shard,
    }


def finish(extraction: Extraction, ends: TargetEnds, entries: list[dict[str, Any]], growing: Path) -> None:
    """Write the manifest, last of all."""
    import transformers

    config = read_json(extraction.target / "config.json")
    names = ["target.safetensors", *(entry["shard"] for entry in entries)]
    settings = extraction.settings
    manifest = {
        "schema": cache.SCHEMA,
        "target": {
            "id": extraction.target.resolve().name,
            "path": str(extraction.target.resolve()),
            "digest": extraction.target_digest,
            "num_layers": (config.get("text_config") or config)["num_hidden_layers"],
            "hidden_size": ends.hidden_size,
            "vocab_size": ends.vocab_size,
            "tied": ends.tied,
        },
        "target_layer_ids": list(extraction.layer_ids),
        "taps": cache.TAPS,
        "dtype": extraction.dtype,
        "engine": {"name": "transformers", "version": transformers.__version__, "arithmetic": "float32", **versions()},
        "text": {"engine": settings["text_engine"], "greedy": True, "max_new_tokens": extraction.max_new_tokens},
        "template": extraction.prompts.template,
        "template_digest": extraction.prompts.template_digest,
        "thinking": extraction.thinking,
        "prompts_digest": extraction.prompts.digest,
        "settings": settings,
        "prompts": entries,
        "files": cache.file_facts(growing, names),
    }
    write_json(growing / "manifest.json", manifest)


def clear_away(out: Path) -> None:
    """Remove from a whole cache what only its extraction needed."""
    shutil.rmtree(out / "entries", ignore_errors=True)
    for name in ("progress.jsonl", "settings.json"):
        (out / name).unlink(missing_ok=True)


def _check_ids(prompts: PromptSet, ends: TargetEnds) -> None:
    beyond = [each.id for each in prompts.prompts if max(each.token_ids) >= ends.vocab_size]
    if beyond:
        raise Refused(f"prompt {beyond[0]}: holds a token id beyond the target's {ends.vocab_size}")


def _check_same(found: Any, wanted: dict[str, Any], where: Path) -> None:
    found = found if isinstance(found, dict) else {}
    different = [key for key in wanted if found.get(key) != wanted[key]]
    if different:
        raise Refused(f"{where}: was made with another {', '.join(different)}. Remove it or choose another --out")


def _not_greedy(entry: dict[str, Any]) -> int:
    """How many tokens of a completion are not the target's choice in the pass that read the hidden states."""
    produced = entry["token_ids"][entry["prompt_length"] :]
    return sum(token != choice for token, choice in zip(produced, entry["argmax"], strict=True))


def _entry_file(growing: Path, index: int) -> Path:
    return growing / "entries" / f"{index:05d}.json"


def _layers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError("expected a number from 1 up")
    return count


if __name__ == "__main__":
    sys.exit(main())
