"""What orch keeps on this computer: in which folder, and how a file there gets its content whole."""

from __future__ import annotations

import os
from pathlib import Path


def state_folder() -> Path:
    """ORCH_HOME, else XDG_STATE_HOME/orch, else ~/.local/state/orch."""
    if home := os.environ.get("ORCH_HOME"):
        return Path(home)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "orch"


def cache_folder() -> Path:
    """ORCH_HOME/cache, else XDG_CACHE_HOME/orch, else ~/.cache/orch."""
    if home := os.environ.get("ORCH_HOME"):
        return Path(home) / "cache"
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "")
    return (folder if folder.is_absolute() else Path.home() / ".cache") / "orch"


def keep(place: Path, content: bytes, mode: int = 0o666) -> None:
    """As `write_whole`, in a folder of the user's own that is made where there is none."""
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(place, content, mode)


def write_whole(place: Path, content: bytes, mode: int = 0o666) -> None:
    """Write beside, then rename: who reads sees the old file or the new one, and never half. Raises OSError."""
    temporary = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(content)
        temporary.replace(place)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def is_plain(name: str) -> bool:
    """Whether a name, which may come from a host, names a file of its folder here and leads nowhere else."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name
