"""Text for messages: what files and users wrote is shown escaped and cut, paths as short as they can be said."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import TypeAlias

Step: TypeAlias = "str | int"
YamlPath: TypeAlias = "tuple[Step, ...]"


def quoted(text: str, *, bare: bool = False, limit: int = 60) -> str:
    """Text from a file: control characters escaped, length capped."""
    shown = repr(text if len(text) <= limit else text[: limit - 3] + "...")
    return shown[1:-1] if bare else shown


def dotted(path: YamlPath) -> str:
    """`("command", 2)` -> `command[2]`, `("runs", "dflash")` -> `runs.dflash`."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{quoted(step, bare=True)}" for step in path)
    return "".join(steps).removeprefix(".")


def displayed(path: Path) -> str:
    """The path as short as it can be said from the current folder."""
    try:
        path = path.resolve().relative_to(Path.cwd())
    except (ValueError, OSError):
        pass
    return quoted(str(path), bare=True, limit=300)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant."""
    return next(iter(get_close_matches(word, list(known), n=1, cutoff=0.6)), None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean 'checkpoints'?`, else what is known."""
    names = list(known)
    meant = nearest(word, names)
    if meant is not None:
        return f"did you mean {quoted(meant)}?"
    return f"known: {', '.join(quoted(name, bare=True) for name in names)}" if names else "none is known"
