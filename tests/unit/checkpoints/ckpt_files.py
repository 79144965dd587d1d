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

from remote_payload.agent.questions_checkpoints import send_answer
from remote_payload.agent.scan import scan

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


def look(root: Path, layout: str | None = None, *, alive: bool = False, step: int | None = None) -> dict[str, Any]:
    return scan(str(root), layout=layout, training_alive=alive, now=time.time(), step=step)


def states(answer: dict[str, Any]) -> dict[str, str]:
    return {row["path"]: row["state"] for row in answer["candidates"]}


def reasons(answer: dict[str, Any]) -> dict[str, str]:
    return {row["path"]: row["reason"] for row in answer["candidates"]}


class Listener:
    """The other end of a conversation, in memory: what was announced and what was sent."""

    def __init__(self) -> None:
        self.announced: list[dict[str, Any]] = []
        self.chunks: list[bytes] = []

    def progress(self, message: dict[str, Any]) -> None:
        self.announced.append(message)

    def send(self, data: bytes) -> None:
        assert self.announced, "bytes came before the plan"
        assert 0 < len(data) <= 256 * 1024
        self.chunks.append(data)


class Shipped:
    """What arrived: files by name, the sender's account, tensors with their aliases, and the metadata."""

    def __init__(self, root: Path, path: str, **args: Any) -> None:
        listener = Listener()
        self.account = send_answer({"root": str(root), "path": path, **args}, listener)
        blob = b"".join(listener.chunks)
        plan = listener.announced[0]
        assert len(blob) == plan["size"] == sum(file["size"] for file in plan["files"]) == self.account["bytes"]
        assert self.account["sha256"] == hashlib.sha256(blob).hexdigest()
        self.files: dict[str, bytes] = {}
        for file in self.account["files"]:
            self.files[file["path"]], blob = blob[: file["size"]], blob[file["size"] :]
            assert hashlib.sha256(self.files[file["path"]]).hexdigest() == file["sha256"]

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
