"""What an extraction is, and the story of one: texts, then hidden states layer by layer, then a whole cache."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cache
import completions
from arithmetic import Arithmetic
from decoder import Decoder
from files import digest_of, read_json, sha256, write_json
from greedy import NEAR_TIE, Choices, greedy_facts, greedy_tokens, not_greedy
from hidden_states import LayerRun, Reading, plan_for
from machine import versions
from memory import size_text
from progress import Progress
from prompt_files import PromptSet
from refusal import Refused
from safetensors_reader import TensorFiles, write_copy
from servers import Server

_DEFAULTS = {"greedy_check": True, "arithmetic": "float32"}  # settings that older caches don't name
_GROWING = ("texts", "layers")


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """Everything that decides what a cache holds; the same settings give the same cache."""

    target: Path
    layer_ids: tuple[int, ...]
    prompts: PromptSet
    max_new_tokens: int
    thinking: bool
    dtype: str
    server: Server | None
    target_digest: str
    greedy_check: bool = True
    arithmetic: Arithmetic

    @property
    def settings(self) -> dict[str, Any]:
        engine = "transformers"
        if self.server:
            engine = "sglang" if self.server.api == "generate" else "completions"
        return {
            "target_digest": self.target_digest,
            "target_layer_ids": list(self.layer_ids),
            "prompts_digest": self.prompts.digest,
            "template": self.prompts.template,
            "thinking": self.thinking,
            "dtype": self.dtype,
            "max_new_tokens": self.max_new_tokens,
            "text_engine": engine,
            "greedy_check": self.greedy_check,
            "arithmetic": self.arithmetic.name,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """How an extraction runs; none of it changes what the cache means."""

    memory: int
    at_once: int = 4


def begun(out: Path) -> dict[str, Any] | None:
    """Settings of the cache that is there, whole or growing; None where nothing is."""
    if out.exists():
        found = read_json(out / "manifest.json").get("settings")
        return found if isinstance(found, dict) else None
    growing = _growing(out) / "settings.json"
    return read_json(growing) if growing.exists() else None


def _growing(out: Path) -> Path:
    return out.with_name(out.name + ".partial")


def digest_of_target(files: TensorFiles) -> str:
    """Names the target by its configuration and every byte of its weights."""
    return digest_of({file.name: sha256(file) for file in {files.folder / "config.json", *files.files}})


def extract(extraction: Extraction, decoder: Decoder, out: Path, means: Means) -> str:
    """Make the cache at `out`, or find it there; return the sentence to print."""
    if out.exists():
        _check_same(read_json(out / "manifest.json").get("settings"), extraction.settings, out)
        clear_away(out)
        return f"{out}: already there, made with the same settings"
    _check_ids(extraction.prompts, decoder.vocab_size)
    decoder.check_complete()
    growing = _growing(out)
    growing.mkdir(parents=True, exist_ok=True)
    if (growing / "settings.json").exists():
        _check_same(read_json(growing / "settings.json"), extraction.settings, growing)
    write_json(growing / "settings.json", extraction.settings)
    print(f"  arithmetic: {extraction.arithmetic}", file=sys.stderr)
    if extraction.arithmetic.rates:
        write_json(growing / "rates.json", asdict(extraction.arithmetic.rates))
    texts = complete(extraction, decoder, growing, means)
    entries, facts = read(extraction, decoder, texts, growing, means)
    copy_ends(decoder, growing / "target.safetensors")
    finish(extraction, decoder, entries, facts, growing)
    growing.rename(out)
    clear_away(out)
    return _summary(out, entries)


def complete(extraction: Extraction, decoder: Decoder, growing: Path, means: Means) -> list[tuple[int, ...]]:
    """Every text: its prompt and the target's greedy continuation."""
    prompts = extraction.prompts.prompts
    texts = completions.Texts(growing / "texts", prompts)
    missing = texts.missing
    progress = Progress(len(prompts), growing / "progress.jsonl")
    progress.skip(len(prompts) - len(missing), "complete")
    if missing:
        count, stop_ids = extraction.max_new_tokens, completions.stop_ids_of(extraction.target)
        if extraction.server:
            write_json(growing / "server.json", extraction.server.facts())
            texts.take(
                completions.by_server(extraction.server, stop_ids, prompts, missing, count, means.at_once), progress
            )
        else:
            completions.check_fits(decoder.files, means.memory)
            texts.take(completions.by_target(extraction.target, prompts, missing, count), progress)
    found = texts.all()
    beyond = [prompt.id for prompt, text in zip(prompts, found, strict=True) if max(text) >= decoder.vocab_size]
    if beyond:
        raise Refused(f"prompt {beyond[0]}: its completion holds a token beyond the target's {decoder.vocab_size}")
    return found


def read(
    extraction: Extraction, decoder: Decoder, texts: Sequence[tuple[int, ...]], growing: Path, means: Means
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Taps into the shards; each prompt's entry of the manifest, and how they were computed."""
    arithmetic = extraction.arithmetic.name
    plan = plan_for(decoder, texts, means.memory, arithmetic)
    print(f"  memory: {plan}, of {size_text(means.memory)}", file=sys.stderr)
    chunk_tokens = _chunk_tokens(growing / "chunks.json", plan.chunk_tokens)
    reading = Reading(tuple(texts), extraction.layer_ids, chunk_tokens, decoder.packed, arithmetic)
    shards = [
        cache.TapFile(growing / _shard(i), len(text), decoder.hidden_size, len(extraction.layer_ids), extraction.dtype)
        for i, text in enumerate(texts)
    ]
    _check_disk(extraction, decoder, reading.tokens, growing)
    for shard in shards:
        shard.start()
    progress = LayerProgress(growing / "progress.jsonl")
    run = LayerRun(decoder, reading, growing / "layers", progress.step)
    last = decoder.num_layers - 1 if extraction.greedy_check else max(extraction.layer_ids)
    run.run(last, lambda text, place, rows, durable: shards[text].write(place, rows, durable))
    starts = [len(prompt.token_ids) for prompt in extraction.prompts.prompts]
    chosen: Sequence[Choices | None] = [None] * len(texts)
    if extraction.greedy_check:
        spans = [range(start - 1, len(text) - 1) for start, text in zip(starts, texts, strict=True)]
        chosen = run.choose(spans)
    for shard in shards:
        shard.finish()
    entries = [
        _entry(extraction, i, text, choices) for i, (text, choices) in enumerate(zip(texts, chosen, strict=True))
    ]
    return entries, {"chunk_tokens": chunk_tokens, "batching": "packed" if decoder.packed else "padded"}


def _entry(extraction: Extraction, index: int, text: Sequence[int], choices: Choices | None) -> dict[str, Any]:
    prompt = extraction.prompts.prompts[index]
    produced = list(text[len(prompt.token_ids) :])
    argmax = produced if choices is None else choices.ids.tolist()
    entry = {
        "id": prompt.id,
        "data_set": prompt.data_set,
        "token_ids": list(text),
        "prompt_length": len(prompt.token_ids),
        "argmax": argmax,
        "greedy_tokens": greedy_tokens(produced, argmax),
        "shard": _shard(index),
    }
    if choices is not None:
        entry["margins"] = [float(f"{margin:.4g}") for margin in choices.margins.tolist()]
    return entry


def finish(
    extraction: Extraction, decoder: Decoder, entries: list[dict[str, Any]], facts: dict[str, Any], growing: Path
) -> None:
    """Write the manifest, last of all."""
    import transformers

    names = ["target.safetensors", *(entry["shard"] for entry in entries)]
    settings = extraction.settings
    server = read_json(growing / "server.json") if (growing / "server.json").exists() else {}
    measured = read_json(growing / "rates.json") if (growing / "rates.json").exists() else None
    text = {"engine": settings["text_engine"], "greedy": True, "max_new_tokens": extraction.max_new_tokens}
    manifest = {
        "schema": cache.SCHEMA,
        "target": {
            "id": extraction.target.resolve().name,
            "path": str(extraction.target.resolve()),
            "digest": extraction.target_digest,
            "num_layers": decoder.num_layers,
            "hidden_size": decoder.hidden_size,
            "vocab_size": decoder.vocab_size,
            "tied": decoder.tied,
        },
        "target_layer_ids": list(extraction.layer_ids),
        "taps": cache.TAPS,
        "dtype": extraction.dtype,
        "engine": {
            "name": "transformers",
            "version": transformers.__version__,
            "arithmetic": extraction.arithmetic.name,
            **({"gflops_measured": measured} if measured else {}),
            **facts,
            **versions(),
        },
        "text": {**text, "version": transformers.__version__, **server},
        "template": extraction.prompts.template,
        "template_digest": extraction.prompts.template_digest,
        "thinking": extraction.thinking,
        "greedy_check": greedy_facts(entries) if extraction.greedy_check else None,
        "prompts_digest": extraction.prompts.digest,
        "settings": settings,
        "prompts": entries,
        "files": cache.file_facts(growing, names),
    }
    write_json(growing / "manifest.json", manifest)


class LayerProgress:
    """Progress of the layers, then of the head: how many steps each has is known at its first one."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._of: dict[str, Progress] = {}

    def step(self, phase: str, what: str, total: int) -> None:
        if phase not in self._of:
            self._of[phase] = Progress(total, self._file)
        self._of[phase].step(phase, what)


def copy_ends(decoder: Decoder, file: Path) -> None:
    """Copy the target's embedding and head to the cache as they are; a tied head is not stored twice."""
    tensors = [(decoder.embedding_name, "embed_tokens.weight")]
    if not decoder.tied:
        tensors.append((decoder.head_name, "lm_head.weight"))
    write_copy(tensors, decoder.files, file)


def clear_away(out: Path) -> None:
    """Remove from a whole cache what only its extraction needed."""
    for name in (*_GROWING, "entries"):
        shutil.rmtree(out / name, ignore_errors=True)
    for name in ("progress.jsonl", "settings.json", "server.json", "chunks.json", "rates.json"):
        (out / name).unlink(missing_ok=True)


def _summary(out: Path, entries: list[dict[str, Any]]) -> str:
    lines = [f"{out}: {len(entries)} texts, {sum(len(entry['argmax']) for entry in entries)} generated tokens"]
    wrong = sum(map(not_greedy, entries))
    if all("margins" in entry for entry in entries):
        facts = greedy_facts(entries)
        lines.append(
            f"greedy check: median margin {facts['median_margin']}, smallest {facts['smallest_margin']:.2g}, "
            f"{facts['near_ties']} below {NEAR_TIE:g}"
        )
    if wrong:
        lines.append(
            f"warning: {wrong} of them are not the target's own choice here; rounds that meet them are censored"
        )
    return "\n".join(lines)


def _chunk_tokens(file: Path, planned: int) -> int:
    """The size of chunks that an interrupted run began with, unless less memory is given now."""
    began = read_json(file)["tokens"] if file.exists() else planned
    write_json(file, {"tokens": min(began, planned)})
    return min(began, planned)


def _check_disk(extraction: Extraction, decoder: Decoder, tokens: int, growing: Path) -> None:
    """Refuse to start what the disk can't hold: two files of residuals, the taps, the target's embedding and head."""
    numbers = tokens * decoder.hidden_size
    held = sum(file.stat().st_blocks * 512 for file in growing.rglob("*") if file.is_file())
    taps = numbers * len(extraction.layer_ids) * cache.DTYPES[extraction.dtype].itemsize
    ends = [decoder.files.places[name] for name in {decoder.embedding_name, decoder.head_name}]
    needed = 2 * 4 * numbers + taps + sum(place.stop - place.start for place in ends) - held
    free = shutil.disk_usage(growing).free
    if needed > free:
        raise Refused(f"{growing}: {size_text(needed)} are needed there, {size_text(free)} are free")


def _check_ids(prompts: PromptSet, vocab_size: int) -> None:
    beyond = [each.id for each in prompts.prompts if max(each.token_ids) >= vocab_size]
    if beyond:
        raise Refused(f"prompt {beyond[0]}: holds a token id beyond the target's {vocab_size}")


def _check_same(found: Any, wanted: dict[str, Any], where: Path) -> None:
    found = {**_DEFAULTS, **(found if isinstance(found, dict) else {})}
    different = [key for key in wanted if found.get(key) != wanted[key]]
    if different:
        raise Refused(f"{where}: was made with another {', '.join(different)}. Remove it or choose another --out")


def _shard(index: int) -> str:
    return f"shards/{index:05d}.safetensors"
