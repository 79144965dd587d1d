"""Small real checkpoints, and what was shipped of them read back."""

from __future__ import annotations

import hashlib
import os
import struct
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from remote_payload.agent import chunks
from remote_payload.agent.inflow import Inflow
from remote_payload.agent.scan import scan
from remote_payload.agent.sending import send_answer

OLD = 1_790_000_000.0
"""a modification time long ago, so that nothing looks as if it were being written"""


def weights(seed: int, dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "embed.weight": torch.randn(16, 8, generator=generator).to(dtype),
        "layers.0.w": torch.randn(8, 8, generator=generator).to(dtype),
        "norm.weight": torch.ones(8, dtype=dtype),
    }


def training_state(step: int, seed: int | None = None, **more: Any) -> dict[str, Any]:
    """A model with the optimizer state, twice its size and more, that evaluation does not need."""
    model = weights(step if seed is None else seed)
    moments = {i: {"step": torch.tensor(1.0), "exp_avg": torch.randn(t.shape)} for i, t in enumerate(model.values())}
    return {"model": model, "optimizer": {"state": moments, "param_groups": [{"lr": 1e-4}]}, "step": step, **more}


def put(path: Path, content: Any, when: float = 0, **options: Any) -> Path:
    """torch.save, with a modification time `when` seconds after OLD."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, path, **options)
    return touch(path, when)


def write(path: Path, data: bytes | str, when: float = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return touch(path, when)


def touch(path: Path, when: float = 0) -> Path:
    for each in (path, path.parent):
        os.utime(each, (OLD + when, OLD + when))
    return path


def look(
    root: Path, layout: str | None = None, *, alive: bool = False, step: int | None = None, **more: Any
) -> dict[str, Any]:
    return scan(str(root), layout=layout, training_alive=alive, now=time.time(), step=step, **more)


def states(answer: dict[str, Any]) -> dict[str, str]:
    return {row["path"]: row["state"] for row in answer["candidates"]}


def reasons(answer: dict[str, Any]) -> dict[str, str]:
    return {row["path"]: row["reason"] for row in answer["candidates"]}


class Listener:
    """The other end of a conversation, in memory: what was announced and what was sent. It asks for all, then for more
    of nothing."""

    def __init__(self, missing: list[list[int]] | None = None) -> None:
        self.announced: list[dict[str, Any]] = []
        self.pieces: list[bytes] = []
        self._missing = missing

    def progress(self, message: dict[str, Any]) -> None:
        self.announced.append(message)

    def message(self) -> dict[str, Any]:
        if len(self.announced) > 1:
            return {"missing": []}
        if self._missing is not None:
            return {"missing": self._missing}
        count = len(chunks.cut(self.announced[0]["files"]))
        return {"missing": [[0, count - 1]] if count else []}

    def send(self, data: bytes | memoryview) -> None:
        assert self.announced, "bytes came before the plan"
        assert 0 < len(data) <= 256 * 1024
        self.pieces.append(bytes(data))

    def chunks(self) -> dict[int, bytes]:
        """Number -> bytes of the chunks that came, each fitting its hash."""
        found = {}
        for number, data, digest in chunks.Frames(Inflow(self.pieces).into):
            assert hashlib.sha256(data).digest() == digest
            found[number] = bytes(data)
        return found


class Shipped:
    """What arrived: files by name, the sender's account, tensors with their aliases, and the metadata."""

    def __init__(self, root: Path, path: str, **args: Any) -> None:
        listener = Listener()
        self.account = send_answer({"root": str(root), "path": path, **args}, listener)
        plan, came = listener.announced[0], listener.chunks()
        assert self.account["sent"]["tree"] == chunks.tree(hashlib.sha256(came[i]).digest() for i in sorted(came))
        assert sum(map(len, came.values())) == plan["size"] == sum(file["size"] for file in plan["files"])
        self.files: dict[str, bytes] = {file["path"]: b"" for file in plan["files"]}
        for chunk in chunks.cut(plan["files"]):
            self.files[chunk.path] += came[chunk.number]

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        for name, data in self.files.items():
            if name.endswith(".safetensors"):
                with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
                    file.write(data)
                    file.flush()
                    found.update(safetensors.torch.load_file(file.name))
        found.update({alias: found[name] for alias, name in self.account["aliases"].items()})
        return found

    def metadata(self, folder: Path) -> dict[str, str]:
        path = folder / "shipped.safetensors"
        path.write_bytes(self.files["model.safetensors"])
        with safetensors.safe_open(path, "pt") as opened:
            return dict(opened.metadata())


def facts(tensors: dict[str, torch.Tensor]) -> dict[str, tuple[str, tuple[int, ...], str]]:
    """dtype, shape and sha256 of each tensor's bytes."""
    return {name: (str(t.dtype), tuple(t.shape), hashlib.sha256(raw(t)).hexdigest()) for name, t in tensors.items()}


def raw(tensor: torch.Tensor) -> bytes:
    flat = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach()).reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def records(path: Path) -> list[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        return [(info.filename, archive.read(info)) for info in archive.infolist()]


def store(path: Path, items: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> Path:
    """An archive as the standard library writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in items:
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data, compress_type=method)
    return touch(path)


def with_pickle(path: Path, change: Any) -> Path:
    """The same archive with another data.pkl."""
    return store(path, [(n, change(data) if n.endswith("/data.pkl") else data) for n, data in records(path)])


def flip_bit(path: Path, record: str) -> None:
    """Damage one byte in the middle of a record, leaving size and times as they were."""
    status = path.stat()
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        info = next(info for info in archive.infolist() if info.filename.endswith(record))
    name_size, extra_size = struct.unpack_from("<HH", data, info.header_offset + 26)
    data[info.header_offset + 30 + name_size + extra_size + info.file_size // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
