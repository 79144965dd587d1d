"""The hidden-state cache: a target's greedy texts and the hidden states that drafters read, whole or absent.

    manifest.json            what it is and how it was made; written last
    target.safetensors       the target's embedding and head (no head: tied)
    shards/00000.safetensors the taps of one prompt, `taps` [S, K*H], columns in the order of target_layer_ids

The taps are the target's residual stream after decoder layer id (counted from 0), before any norm:
`hidden_states[id+1]` in Hugging Face's counting.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from acceptance import Text
from drafter_config import DrafterConfig
from files import open_safetensors, read_json, sha256
from fitting import check_cached
from refusal import Refused
from safetensors.torch import save_file
from safetensors_reader import encode_header
from target import TargetEnds, load_stored_ends
from torch import Tensor

SCHEMA = 1
TAPS = "post-layer residual, id+1"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
NAMES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_REQUIRED = {
    "target": dict,
    "target_layer_ids": list,
    "taps": str,
    "dtype": str,
    "engine": dict,
    "template": str,
    "thinking": bool,
    "prompts_digest": str,
    "prompts": list,
    "files": dict,
}


@dataclass(frozen=True, slots=True)
class CachedPrompt:
    """One text of the cache and where its taps lie."""

    id: str
    data_set: str
    text: Text
    shard: str


@dataclass(frozen=True, eq=False)
class Cache:
    """A cache whose files are, byte for byte, those of its manifest."""

    folder: Path
    manifest: dict[str, Any]
    prompts: tuple[CachedPrompt, ...]

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        return tuple(self.manifest["target_layer_ids"])

    @property
    def digest(self) -> str:
        """Names the whole cache: the manifest holds every file's sha256."""
        return sha256(self.folder / "manifest.json")

    def load_ends(self) -> TargetEnds:
        """The target's embedding and head."""
        return load_stored_ends(self.folder / "target.safetensors")

    def check_drafter(self, config: DrafterConfig) -> None:
        """Refuse a drafter of another target, or one whose taps are not cached."""
        check_cached(config, self.manifest, self.folder)

    def taps(self, prompt: CachedPrompt, layer_ids: Sequence[int]) -> Tensor:
        """Taps [S, K*H] of one prompt in float32, for these layers in this order."""
        with open_safetensors(self.folder / prompt.shard) as tensors:
            stored = tensors.get_tensor("taps")
        width = stored.shape[1] // len(self.target_layer_ids)
        if stored.shape[0] != len(prompt.text.token_ids) or width != self.manifest["target"]["hidden_size"]:
            raise Refused(f"{self.folder / prompt.shard}: taps are {list(stored.shape)}: not those of its manifest")
        places = [self.target_layer_ids.index(layer) for layer in layer_ids]
        taps_SK = torch.cat([stored[:, place * width : (place + 1) * width] for place in places], dim=1).float()
        if not bool(taps_SK.isfinite().all()):
            raise Refused(f"{self.folder / prompt.shard}: holds hidden states that are not finite (overflow?)")
        return taps_SK


def load_cache(folder: Path) -> Cache:
    """Open a cache, having read and compared every byte of it before hours are spent on it.

    Raises `Refused` where it is unfinished, newer than this harness, or a file is gone or damaged (naming it).
    """
    if not folder.is_dir():
        raise Refused(f"{folder}: no such folder")
    manifest = read_manifest(folder)
    prompts = tuple(_prompt(entry, manifest, folder) for entry in manifest["prompts"])
    if not prompts:
        raise Refused(f"{folder}: holds no prompts")
    for name, facts in manifest["files"].items():
        _check_file(folder / _inside(name, folder), facts)
    return Cache(folder, manifest, prompts)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a whole cache, checked in itself; the files that it names are not looked at."""
    if not (folder / "manifest.json").exists():
        raise Refused(f"{folder}: has no manifest.json: not a hidden-state cache, or its extraction didn't finish")
    manifest = read_json(folder / "manifest.json")
    _check_manifest(manifest, folder)
    return manifest


def _check_file(file: Path, facts: Any) -> None:
    facts = facts if isinstance(facts, dict) else {}
    if not file.is_file() or file.stat().st_size != facts.get("bytes"):
        raise Refused(
            f"{file}: missing, or not of the size in the manifest ({facts.get('bytes')} bytes). {_cure(file)}"
        )
    if sha256(file) != facts.get("sha256"):
        raise Refused(f"{file}: damaged: its bytes are not those that were written. {_cure(file)}")


def _cure(file: Path) -> str:
    return f"Make it again: extract_hidden_states.py --rebuild {file.name} --target DIR --out CACHE"


def _check_manifest(manifest: dict[str, Any], folder: Path) -> None:
    schema = manifest.get("schema")
    if type(schema) is not int or schema > SCHEMA:
        raise Refused(f"{folder}/manifest.json: schema {schema!r}; this harness reads up to {SCHEMA}: update it")
    wrong = [key for key, kind in _REQUIRED.items() if not isinstance(manifest.get(key), kind)]
    target = manifest.get("target")
    if isinstance(target, dict):
        wrong += [
            f"target.{key}" for key in ("num_layers", "hidden_size", "vocab_size") if type(target.get(key)) is not int
        ]
        wrong += [f"target.{key}" for key in ("id", "digest") if not isinstance(target.get(key), str)]
    if wrong:
        raise Refused(f"{folder}/manifest.json: missing or of the wrong kind: {', '.join(wrong)}")
    if manifest["taps"] != TAPS:
        raise Refused(f"{folder}: taps are '{manifest['taps']}', expected '{TAPS}': the layers would be shifted")
    if manifest["dtype"] not in DTYPES:
        raise Refused(f"{folder}: dtype is {manifest['dtype']}, expected one of {', '.join(DTYPES)}")


def _prompt(entry: dict[str, Any], manifest: dict[str, Any], folder: Path) -> CachedPrompt:
    try:
        text = Text(tuple(entry["token_ids"]), entry["prompt_length"], tuple(entry["argmax"]))
        prompt = CachedPrompt(str(entry["id"]), str(entry["data_set"]), text, entry["shard"])
    except (KeyError, TypeError) as error:
        raise Refused(f"{folder}/manifest.json: a prompt lacks {error}") from None
    whole = 0 < text.prompt_length <= len(text.token_ids) == text.prompt_length + len(text.argmax)
    known = all(type(token) is int and 0 <= token < manifest["target"]["vocab_size"] for token in text.token_ids)
    if not (whole and known and prompt.shard in manifest["files"]):
        raise Refused(f"{folder}/manifest.json: prompt {prompt.id}: its text, argmax and shard don't fit together")
    return prompt


def _inside(name: str, folder: Path) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise Refused(f"{folder}/manifest.json: names the file {name}, outside the cache")
    return path


def save_ends(ends: TargetEnds, file: Path) -> None:
    """Store embedding and head as they are; a tied head is not stored twice."""
    tensors = {"embed_tokens.weight": ends.embedding_VH.contiguous()}
    if not ends.tied:
        tensors["lm_head.weight"] = ends.head_VH.contiguous()
    _save_whole(tensors, file)


def save_taps(taps_SK: Tensor, file: Path, dtype: str) -> None:
    """Store the taps of one text that is in memory; the file is there when it is whole."""
    _save_whole({"taps": taps_SK.to(DTYPES[dtype]).contiguous()}, file)


def _save_whole(tensors: dict[str, Tensor], file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.tmp")
    save_file(tensors, temporary)
    temporary.replace(file)


class TapFile:
    """The shard of one text while it grows: taps come a layer at a time, and it gets its name when all are there."""

    def __init__(self, file: Path, tokens: int, width: int, layers: int, dtype: str) -> None:
        self._file, self._growing = file, file.with_name(f".{file.name}.tmp")
        self._tokens, self._width, self._layers, self._dtype = tokens, width, layers, DTYPES[dtype]
        size = tokens * width * layers * self._dtype.itemsize
        entry = {"dtype": NAMES[dtype], "shape": [tokens, width * layers], "data_offsets": [0, size]}
        self._header = encode_header({"taps": entry})
        self._size = len(self._header) + size

    def start(self) -> None:
        """An empty file of the right size, unless one was begun."""
        if self._growing.exists() and self._growing.stat().st_size == self._size:
            return
        self._growing.parent.mkdir(parents=True, exist_ok=True)
        with open(self._growing, "wb") as stream:
            stream.write(self._header)
            stream.truncate(self._size)

    def write(self, place: int, tap_SH: Tensor, durable: bool) -> None:
        """Store one layer's tap [S, H] as columns; `durable` waits for the disk."""
        with open(self._growing, "rb+") as stream, mmap.mmap(stream.fileno(), 0) as memory:
            flat = torch.frombuffer(memory, dtype=torch.uint8)[len(self._header) :].view(self._dtype)
            taps_SK = flat.view(self._tokens, self._layers * self._width)
            taps_SK[:, place * self._width : (place + 1) * self._width] = tap_SH
            if durable:
                memory.flush()
            del flat, taps_SK

    def finish(self) -> None:
        """Give the file its name; nothing happens where it has it."""
        if self._growing.exists():
            self._growing.replace(self._file)


def file_facts(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Size and digest of each file of a cache being finished."""
    return {name: {"bytes": (folder / name).stat().st_size, "sha256": sha256(folder / name)} for name in names}
