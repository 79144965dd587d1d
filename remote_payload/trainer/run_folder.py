"""What a run leaves behind: checkpoints in step_N folders, and progress lines on stdout and in a log file."""

from __future__ import annotations

import shutil
import sys
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import torch


@dataclass
class Checkpoints:
    """Saves step_N/checkpoint.pt below `root` and keeps the newest `keep` of those saved here (itself included).

    The file is written in place by a plain torch.save, without a marker of completeness or a rename, as many training
    programs do: whoever reads beside it must tell a finished file from a growing one by itself.
    """

    root: Path
    keep: int
    saved: deque[Path] = field(default_factory=deque)

    def save(self, step: int, contents: dict[str, Any]) -> Path:
        folder = self.root / f"step_{step}"
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(contents, folder / "checkpoint.pt")
        self.saved.append(folder)
        while len(self.saved) > self.keep:
            shutil.rmtree(self.saved.popleft())
        return folder


@dataclass
class ProgressLog:
    """Prints progress lines and appends the same lines to a file if there is one, each visible at once."""

    file: TextIO | None

    def write(self, line: str) -> None:
        print(line, flush=True)
        self._append(line)

    def end(self, words: str) -> None:
        """How training ended, for whoever reads the file later; on stderr, as stdout holds progress only."""
        print(words, file=sys.stderr, flush=True)
        self._append(words)

    def _append(self, line: str) -> None:
        if self.file is not None:
            print(line, file=self.file, flush=True)


def progress_line(step: int, epoch: float, loss: float, tokens_per_second: float) -> str:
    """Such as `step 5296 epoch 1.04 loss 2.31 19.5K tok/s`."""
    return f"step {step} epoch {epoch:.2f} loss {loss:.2f} {tokens_per_second / 1000:.1f}K tok/s"
