"""Tensors of a Hugging Face folder, read where they lie: read-only maps, pages given back once a tensor was read.

A plain map counts every page that was touched as the process's own until something needs the memory; after a pass over
a 50 GB target that is 50 GB. Here the pages of a tensor leave the process once it was read (the system may keep them).
The maps are shared and read-only, so they count neither as anonymous memory nor against RLIMIT_DATA.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from files import read_json
from refusal import Refused
from torch import Tensor

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_SLAB = 8 << 20
_AHEAD = 128 << 10  # Linux fetches no more at a call than the disk's read-ahead, by default this much
_LONGEST_HEADER = 100 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies: bytes [start, stop) of a file."""

    file: Path
    start: int
    stop: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _Map:
    memory: mmap.mmap
    bytes: Tensor


class TensorFiles:
    """Every tensor of a folder by name. Raises `Refused` where a header doesn't fit its file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = _files_of(folder)
        self._maps = {file: _map(file) for file in self.files}
        self.places = {name: place for file in self.files for name, place in _places(file).items()}

    def shape(self, name: str) -> tuple[int, ...]:
        return self._place(name).shape

    def view(self, name: str) -> Tensor:
        """The tensor in the file's dtype, on the map. It must not be written to."""
        place = self._place(name)
        if place.dtype not in DTYPES:
            raise Refused(f"{place.file}: {name} is {place.dtype}; expected one of {', '.join(DTYPES)}")
        flat = self._maps[place.file].bytes[place.start : place.stop]
        dtype = DTYPES[place.dtype]
        if place.start % dtype.itemsize:
            flat = flat.clone()
        return flat.view(dtype).view(place.shape)

    def read_into(self, name: str, out: Tensor) -> None:
        """Copy a tensor, widened to the dtype of `out`, and give its pages back."""
        view = self.view(name)
        if view.shape != out.shape:
            raise Refused(f"{self._place(name).file}: {name} is {list(view.shape)}, expected {list(out.shape)}")
        out.copy_(view)
        self.release(name)

    def prefetch(self, names: Iterable[str]) -> None:
        """Have the system read these tensors from the disk into its own memory, ahead of their use."""
        if not hasattr(os, "posix_fadvise"):
            return
        for place in map(self._place, names):
            with open(place.file, "rb") as stream:
                for start in range(place.start, place.stop, _AHEAD):
                    size = min(_AHEAD, place.stop - start)
                    os.posix_fadvise(stream.fileno(), start, size, os.POSIX_FADV_WILLNEED)

    def copy_to(self, name: str, stream: BinaryIO) -> None:
        """Write a tensor's bytes to a file, a slab at a time."""
        place = self._place(name)
        memory = self._maps[place.file].memory
        for start in range(place.start, place.stop, _SLAB):
            stop = min(start + _SLAB, place.stop)
            stream.write(memory[start:stop])
            _give_back(memory, start, stop)

    def release(self, name: str) -> None:
        """Give back the pages that hold nothing but this tensor."""
        place = self._place(name)
        _give_back(self._maps[place.file].memory, place.start, place.stop)

    def ending(self, ending: str) -> str:
        """The one tensor of that ending; those of extra prediction layers and vision towers don't count."""
        names = [name for name in self.places if ("." + name).endswith("." + ending) and not _beside(name)]
        if len(names) != 1:
            raise Refused(f"{self.folder}: expected one {ending}, found {', '.join(sorted(names)) or 'none'}")
        return names[0]

    def _place(self, name: str) -> Place:
        if name not in self.places:
            raise Refused(f"{self.folder}: has no tensor {name}")
        return self.places[name]


def write_copy(tensors: Iterable[tuple[str, str]], source: TensorFiles, file: Path) -> None:
    """Copy tensors, given as (name there, name here), to a safetensors file of their own, without holding them."""
    header, offset, names = {}, 0, []
    for there, here in tensors:
        place = source.places[there]
        size = place.stop - place.start
        header[here] = {"dtype": place.dtype, "shape": list(place.shape), "data_offsets": [offset, offset + size]}
        offset += size
        names.append(there)
    temporary = file.with_name(f".{file.name}.tmp")
    with open(temporary, "wb") as stream:
        stream.write(encode_header(header))
        for name in names:
            source.copy_to(name, stream)
    temporary.replace(file)


def encode_header(header: dict[str, Any]) -> bytes:
    """Length and JSON, padded so that the tensors begin at a multiple of 8."""
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _beside(name: str) -> bool:
    return bool({"mtp", "visual"} & set(name.split(".")))


def _files_of(folder: Path) -> list[Path]:
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.exists():
        names = read_json(index).get("weight_map")
        if not isinstance(names, dict) or not names:
            raise Refused(f"{index}: has no weight_map")
        return [folder / file for file in sorted(set(names.values()))]
    if not single.exists():
        raise Refused(f"{folder}: holds neither model.safetensors nor model.safetensors.index.json")
    return [single]


def _map(file: Path) -> _Map:
    try:
        with open(file, "rb") as stream:
            memory = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise Refused(f"{file}: no such file") from None
    except (OSError, ValueError) as error:
        raise Refused(f"{file}: not a whole safetensors file ({error})") from None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")  # nothing here writes through it
        return _Map(memory, torch.frombuffer(memory, dtype=torch.uint8))


def _places(file: Path) -> dict[str, Place]:
    """The header of a safetensors file, every entry checked against the file's size."""
    size = file.stat().st_size
    try:
        with open(file, "rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > min(size - 8, _LONGEST_HEADER):
                raise ValueError("its header is longer than the file")
            header = json.loads(stream.read(length))
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        return {name: _place(entry, file, 8 + length, size) for name, entry in entries.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Refused(f"{file}: not a whole safetensors file ({error})") from None


def _place(entry: dict[str, Any], file: Path, data: int, size: int) -> Place:
    first, last = entry["data_offsets"]
    shape, dtype = tuple(entry["shape"]), entry["dtype"]
    if not 0 <= first <= last <= size - data:
        raise ValueError("a tensor lies beyond its end")
    if dtype in DTYPES and last - first != math.prod(shape) * DTYPES[dtype].itemsize:
        raise ValueError("a tensor's size doesn't fit its shape")
    return Place(file, data + first, data + last, dtype, shape)


def _give_back(memory: mmap.mmap, start: int, stop: int) -> None:
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    length = stop // mmap.PAGESIZE * mmap.PAGESIZE - first
    if length > 0 and hasattr(mmap, "MADV_DONTNEED"):
        memory.madvise(mmap.MADV_DONTNEED, first, length)
