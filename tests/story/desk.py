"""A laptop's project beside a training that steps and nothing more: for what needs no checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
from world import ROOT, wait_until

from orchestrator.reports.schema import document_schema

STEPPING = ROOT / "tests" / "stepping.py"
ORCH = [sys.executable, "-c", "from orchestrator.cli import main; main()"]


@dataclass
class Desk:
    """A laptop's project with one training run, on boxes that are folders of this machine unless told otherwise."""

    folder: Path
    more: dict[str, str] = field(default_factory=dict)
    """environment of the commands typed here"""
    trainings: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    typed: list[subprocess.Popen[str]] = field(default_factory=list)

    def furnish(self, *boxes: str, aftermath: str = "300ms") -> None:
        """Boxes with a training on each."""
        hosts = "".join(
            f"  {box}: {{roles: [train], transport: local, root: {self.folder / box}, python: {sys.executable}}}\n"
            for box in boxes
        )
        for box in boxes:
            (self.folder / box).mkdir()
            words = [sys.executable, str(STEPPING), "train.log", "--pidfile", "train.pid"]
            self.trainings[box] = subprocess.Popen(words, cwd=self.folder / box, stdin=subprocess.DEVNULL)
            wait_until((self.folder / box / "train.log").exists, 20)
        self.write(hosts, boxes, aftermath)

    def write(self, hosts: str, boxes: Sequence[str], aftermath: str = "300ms") -> None:
        """hosts.yaml, with the lines of its hosts."""
        (self.folder / "hosts.yaml").write_text(
            f"hosts:\n{hosts}"
            f"timeouts: {{sample: 500ms, aftermath: {aftermath}, heartbeat: 500ms, dead: 8s}}\n"
            f"runs:\n  tiny: {{host: [{', '.join(boxes)}], checkpoints: /nowhere, log: train.log,\n"
            f"         process: {{pidfile: train.pid}}}}\n"
        )

    def environment(self) -> dict[str, str]:
        return {**os.environ, "ORCH_HOME": str(self.folder / "state"), "PYTHONPATH": str(ROOT), **self.more}

    def start(self, *words: str) -> subprocess.Popen[str]:
        typed = subprocess.Popen(
            [*ORCH, *words],
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.typed.append(typed)
        return typed

    def clear(self) -> None:
        """End what was started here."""
        for child in (*self.typed, *self.trainings.values()):
            if child.poll() is None:
                child.kill()
            child.communicate()

    def orch(self, *words: str) -> subprocess.CompletedProcess[str]:
        typed = self.start(*words)
        out, err = typed.communicate(timeout=90)
        return subprocess.CompletedProcess(words, typed.returncode, out, err)

    def json(self, *words: str, code: int = 0) -> dict[str, Any]:
        done = self.orch(*words)
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        document = json.loads(done.stdout)
        assert isinstance(document, dict)
        jsonschema.validate(document, document_schema(document["command"]))
        return document
