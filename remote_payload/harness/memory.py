"""How much memory an extraction may use, and how it is shared out: layers' weights and one chunk of texts."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

from refusal import Refused

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_SHARE = 0.8  # of what is available, where no budget is given
_LEAST = 1 << 20  # of a budget: below it is a unit that was forgotten
_SLACK = 48 << 20  # buffers of matrix kernels and what the allocator keeps
_CHUNKS = (2048, 1024, 512, 256, 128, 64)  # 512 to 2048 tokens keep a processor busy; fewer make its products small


@dataclass(frozen=True, slots=True)
class Plan:
    """One layer is held at a time; a chunk has up to `chunk_tokens`."""

    chunk_tokens: int
    expected: int
    """Anonymous memory at the peak, bytes."""

    def __str__(self) -> str:
        return f"1 layer at a time, chunks of {self.chunk_tokens} tokens: up to {size_text(self.expected)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What sizes a plan, in bytes and tokens. `held` is what the process holds already."""

    held: int
    layer: int
    per_token: int
    longest: int


def plan_memory(needs: Needs, budget: int) -> Plan:
    """The fastest plan within the budget. Raises `Refused`, saying how much it takes, where there is none."""
    for tokens in _CHUNKS:
        expected = _expected(needs, tokens)
        if expected <= budget:
            return Plan(tokens, expected)
    raise Refused(
        f"{size_text(budget)} of memory are not enough: a layer is {size_text(needs.layer)}, the longest "
        f"text has {needs.longest} tokens. It takes {size_text(expected)} (--memory)"
    )


def _expected(needs: Needs, tokens: int) -> int:
    return needs.held + _SLACK + needs.layer + max(tokens, needs.longest) * needs.per_token


def default_budget() -> int:
    """Most of the memory that is available to this process; 8 GiB where the system doesn't tell."""
    room = available()
    return anonymous_memory() + int(_SHARE * room) if room is not None else 8 << 30


def available() -> int | None:
    """Bytes to be had without swapping, by the kernel's estimate and the control groups around this process."""
    known = [room for room in (_meminfo("MemAvailable"), *map(_group_room, _groups())) if room is not None]
    return min(known, default=None)


def _groups() -> list[tuple[Path, Path]]:
    """Files of limit and use, of this process's control group and those around it (version 2), and of version 1."""
    root = Path("/sys/fs/cgroup")
    found = [(root / "memory/memory.limit_in_bytes", root / "memory/memory.usage_in_bytes")]
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    own = root / next((line[3:].lstrip("/") for line in lines if line.startswith("0::")), "")
    folders = [folder for folder in (own, *own.parents) if folder.is_relative_to(root)]
    return [*found, *((folder / "memory.max", folder / "memory.current") for folder in folders)]


def _group_room(files: tuple[Path, Path]) -> int | None:
    limit, used = map(_number, files)
    return None if limit is None or used is None else max(0, limit - used)


def anonymous_memory() -> int:
    """Bytes of memory that only this process fills (RssAnon); 0 where the system doesn't tell."""
    return _field(Path("/proc/self/status"), "RssAnon") or 0


def parse_size(text: str) -> int:
    """`750MB`, `1.5GiB` or a number of bytes."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]i?)?B?\s*", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no size like 12GiB")
    size = int(float(match[1]) * _UNITS[match[2] or ""])
    if size < _LEAST:
        raise argparse.ArgumentTypeError(f"{text!r} is {size} bytes, too little for anything: a size like 12GiB")
    return size


def size_text(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def _meminfo(name: str) -> int | None:
    return _field(Path("/proc/meminfo"), name)


def _field(file: Path, name: str) -> int | None:
    try:
        match = re.search(rf"^{name}:\s+(\d+) kB", file.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(match[1]) * 1024 if match else None


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
