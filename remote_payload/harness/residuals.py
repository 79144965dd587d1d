"""The residual stream of all texts between two layers, in files, so that a killed extraction goes on at a layer.

Two files take turns: a layer reads one and writes the other, and only then is it said to be done. A layer that was cut
short is done again from what it read. They are mapped, so the system may keep them in memory or not.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from files import read_json, write_json
from refusal import Refused
from torch import Tensor


class Residuals:
    """Rows [N, H] in float32 after `done` layers (0: the embeddings; -1: nothing yet).

    `texts` names what the rows belong to: files of other texts are started anew.
    """

    def __init__(self, folder: Path, tokens: int, hidden: int, texts: str) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._identity = {"tokens": tokens, "hidden": hidden, "texts": texts}
        self._files = [folder / f"residuals{number}.f32" for number in (0, 1)]
        self.done, self._current = self._resume(tokens * hidden * 4)
        self._rows = [_mapped(file, tokens, hidden) for file in self._files]

    @property
    def current(self) -> Tensor:
        """What the last finished layer left."""
        return self._rows[self._current]

    @property
    def next(self) -> Tensor:
        """Where the layer being computed writes."""
        return self._rows[1 - self._current]

    def advance(self, durable: bool) -> None:
        """The layer is done. `durable` waits for the disk; else it outlives this process, but not a power cut."""
        if durable:
            _sync(self._files[1 - self._current])
        self.done += 1
        self._current = 1 - self._current
        state = {"done": self.done, "current": self._current, "durable": durable, "boot": boot_id()}
        write_json(self._folder / "state.json", {**self._identity, **state}, durable=durable)

    def _resume(self, size: int) -> tuple[int, int]:
        state = _read(self._folder / "state.json")
        same = all(state.get(key) == value for key, value in self._identity.items())
        whole = all(file.exists() and file.stat().st_size == size for file in self._files)
        if same and whole and _there(state):
            return state["done"], state["current"]
        for file in self._files:
            with open(file, "wb") as stream:
                stream.truncate(size)
        return -1, 1


def _read(file: Path) -> dict[str, Any]:
    """The state; nothing where there is none, or what a power cut left of one that did not wait for the disk."""
    try:
        return read_json(file)
    except Refused:
        return {}


def _there(state: dict[str, Any]) -> bool:
    return bool(state["durable"]) or (state["boot"] is not None and state["boot"] == boot_id())


def boot_id() -> str | None:
    """Names this run of the kernel: what was written since lies at least in its cache."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _mapped(file: Path, tokens: int, hidden: int) -> Tensor:
    return torch.from_file(str(file), shared=True, size=tokens * hidden, dtype=torch.float32).view(tokens, hidden)


def _sync(file: Path) -> None:
    with open(file, "rb+") as stream:
        os.fsync(stream.fileno())
