"""A world for `orch watch`: two local boxes, a training that saves small checkpoints by rotation, a cheap evaluation.

Every checkpoint holds a value of its own in its weights, and the evaluation writes down which value it measured, so
that a test can count evaluations by content.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from world import ROOT, wait_until

EVALUATE = """\
import json, os, struct, sys, time
with open(sys.argv[1], "rb") as file:
    size = struct.unpack("<Q", file.read(8))[0]
    header = json.loads(file.read(size))
    begin = next(one["data_offsets"][0] for name, one in header.items() if name != "__metadata__")
    file.seek(8 + size + begin)
    value = struct.unpack("<f", file.read(4))[0]
with open(os.path.expanduser("~/measured.log"), "a") as log:
    log.write("%d\\n" % value)
time.sleep({seconds})
if os.path.exists(os.path.expanduser("~/fails-%d" % value)):
    sys.exit(3)
json.dump({{"score": value, "more": {{"half": value / 2}}, "step": 1}}, open(sys.argv[2], "w"))
"""
HOSTS = """\
hosts:
  train-box: {{roles: [train], transport: local, root: {train}, python: {python}}}
  eval-box: {{roles: [eval], transport: local, root: {evaluate}, python: {python}, workdir: ~/orch}}
timeouts: {{poll: 100ms, watch: 400ms}}
runs: {{r: {{host: train-box, checkpoints: {train}/checkpoints, job: j, process: {{pidfile: {train}/train.pid}}}}}}
"""
JOB = """\
harness: {{local: harness, remote: {evaluate}/harness}}
command: ["{{python}}", evaluate.py, "{{checkpoint}}", "{{result}}"]
result: {{file: r.json, headline: score}}
"""


@dataclass
class WatchedWorld:
    """Boxes and project below `folder`. Close it."""

    folder: Path
    seconds: float = 0.1
    """that an evaluation takes"""
    config: str = ""
    """the user's own config.yaml"""
    typed: list[Watching] = field(default_factory=list)

    def __post_init__(self) -> None:
        for place in (self.checkpoints, self.evaluate, self.folder / "harness", self.folder / "jobs"):
            place.mkdir(parents=True)
        (self.folder / "harness" / "evaluate.py").write_text(EVALUATE.format(seconds=self.seconds))
        places = {"train": self.train, "evaluate": self.evaluate, "python": sys.executable}
        (self.folder / "hosts.yaml").write_text(HOSTS.format(**places))
        (self.folder / "jobs" / "j.yaml").write_text(JOB.format(**places))
        if self.config:
            own = self.folder / "config" / "orch" / "config.yaml"
            own.parent.mkdir(parents=True)
            own.write_text(self.config)
            own.chmod(0o600)
        self.training = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL)
        (self.train / "train.pid").write_text(str(self.training.pid))

    @property
    def train(self) -> Path:
        return self.folder / "train-box"

    @property
    def evaluate(self) -> Path:
        return self.folder / "eval-box"

    @property
    def checkpoints(self) -> Path:
        return self.train / "checkpoints"

    def save(self, step: int, value: int | None = None, *, keep: int = 0) -> Path:
        """What a training does: write a checkpoint, then remove the oldest ones past `keep`."""
        import torch

        place = self.checkpoints / f"step_{step}" / "checkpoint.pt"
        place.parent.mkdir(exist_ok=True)
        weights = torch.full((4096,), float(step if value is None else value))
        torch.save({"model": {"w": weights}, "optimizer": {"m": torch.zeros(8192)}, "step": step}, place)
        if keep:
            folders = sorted(self.checkpoints.iterdir(), key=lambda folder: int(folder.name[5:]))
            for old in folders[:-keep]:
                shutil.rmtree(old)
        return place

    def wait_for_the_first_look(self) -> None:
        """What is saved from now on is new to the watch."""
        wait_until(lambda: bool(list(self.folder.glob("state/watch/*.json"))), 90)

    def measured(self) -> list[int]:
        """Values in the order in which evaluations began on them."""
        log = self.evaluate / "measured.log"
        return [int(line) for line in log.read_text().split()] if log.exists() else []

    def end_training(self) -> None:
        self.training.terminate()
        self.training.wait(timeout=10)

    def variables(self) -> dict[str, str]:
        own = {"ORCH_HOME": str(self.folder / "state"), "PYTHONPATH": str(ROOT)}
        return {**os.environ, **own, "XDG_CONFIG_HOME": str(self.folder / "config"), "OMP_NUM_THREADS": "1"}

    def start(self, *words: str) -> Watching:
        """Type `orch watch r ... --json`."""
        typed = subprocess.Popen(
            [sys.executable, "-c", "from orchestrator.cli import main; main()", "watch", "r", "--json", *words],
            cwd=self.folder,
            env=self.variables(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.typed.append(Watching(typed))
        return self.typed[-1]

    def orch(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Type another command."""
        return subprocess.run(
            [sys.executable, "-c", "from orchestrator.cli import main; main()", *words],
            cwd=self.folder,
            env=self.variables(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def close(self) -> None:
        """End what was started."""
        self.end_training()
        for watching in self.typed:
            watching.close()


class Watching:
    """A watch that was typed: the events that it has printed so far."""

    def __init__(self, typed: subprocess.Popen[str]) -> None:
        self.process = typed
        self.events: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))

    def of(self, *kinds: str) -> list[dict[str, Any]]:
        """Events of these kinds."""
        return [event for event in list(self.events) if event["event"] in kinds]

    def wait_for(self, kind: str, step: int | None = None, seconds: float = 90) -> None:
        """Until an event of this kind (of this step) was printed."""
        wait_until(lambda: any(step in (None, event["step"]) for event in self.of(kind)), seconds)

    def ended(self, seconds: float = 100) -> int:
        """The exit code, once it has ended by itself."""
        try:
            code = self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it goes on after {seconds} s; last events: {self.events[-12:]}") from None
        self._reader.join(timeout=10)
        return code

    def kill(self) -> None:
        """As a laptop that dies."""
        self.process.send_signal(signal.SIGKILL)
        self.ended()

    def close(self) -> None:
        """End it, if it goes on, and let go of its streams."""
        if self.process.poll() is None:
            self.process.kill()
        self.ended()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def said(self) -> str:
        """Its stderr; only once it has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read()
