"""A project that is synced to a folder which stands for a host, and what tests of `orch sync-harness` do with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema

from orchestrator import config
from orchestrator.reports.documents import sync_body
from orchestrator.reports.envelope import document
from orchestrator.reports.schema import document_schema
from orchestrator.reports.tables import diff_lines
from orchestrator.ssh.choose import Connections
from orchestrator.workflows import sync_harness as story
from orchestrator.workflows.sync_harness import SyncReport

LINES = "".join(f"line {number}\n" for number in range(12))
FILES = {
    "eval.py": LINES,
    "lib/util.py": "VALUE = 1\n",
    "run.sh": "#!/bin/sh\n",
    "-n": "a leading dash\n",
    'it\'s "$(x)" é.py': "odd\n",
    "model.dat": "\0\1\2",
}


class Answer:
    """What the user would say."""

    def __init__(self, yes: bool) -> None:
        self.possible = yes

    def __call__(self, drift: Any, diffs: Any) -> bool:
        return self.possible


@dataclass
class Project:
    folder: Path
    connections: Connections

    @property
    def local(self) -> Path:
        return self.folder / "project" / "harness"

    @property
    def remote(self) -> Path:
        return self.folder / "host" / "eval"

    @property
    def inventory(self) -> config.Inventory:
        return config.load_inventory(self.folder / "project" / "hosts.yaml")

    @contextmanager
    def compared(self, *also: str) -> Iterator[SyncReport]:
        with story.compared(self.inventory, None, None, self.connections, also) as report:
            body = document("sync-harness", sync_body(report))
            jsonschema.validate(json.loads(json.dumps(body)), document_schema("sync-harness"))
            yield report

    def compare(self, *also: str) -> SyncReport:
        with self.compared(*also) as report:
            return report

    def state(self) -> str:
        return self.compare().drift.state

    def changes(self, *also: str) -> list[tuple[str, str, str]]:
        return [(c.path, c.change, c.side) for c in self.compare(*also).drift.files]

    def shown(self) -> str:
        report = self.compare()
        return str(diff_lines(report.diffs, report.drift))

    def sync(self, yes: bool = False) -> SyncReport:
        with self.compared() as report:
            return story.sync(report, Answer(yes))

    def keep(self, *also: str, yes: bool = False) -> SyncReport:
        with self.compared(*also) as report:
            return story.keep_remote(report, self.inventory, self.connections, yes)

    def merge(self) -> SyncReport:
        with self.compared() as report:
            return story.merge(report, self.inventory, self.connections)

    def git(self, *words: str) -> None:
        own = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(self.folder / "project")]
        subprocess.run(["git", *own, *words], check=True, capture_output=True)


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())


def tree(root: Path) -> dict[str, tuple[bytes, bool]]:
    return {
        str(path.relative_to(root)): (path.read_bytes(), os.access(path, os.X_OK))
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".orch" not in path.relative_to(root).parts
    }


def edit(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


@contextmanager
def synced_project(tmp_path: Path) -> Iterator[Project]:
    """Synced once."""
    host = f"{{roles: [eval], transport: local, root: {tmp_path}/host, python: {sys.executable}}}"
    write(tmp_path, "project/hosts.yaml", f"hosts:\n  box: {host}\nruns: {{}}\n")
    command = '["{python}", eval.py, "{checkpoint}", "{result}"]'
    write(tmp_path, "project/jobs/job.yaml", f"harness: {{local: harness, remote: ~/eval}}\ncommand: {command}\n")
    (tmp_path / "host").mkdir()
    for name, text in FILES.items():
        write(tmp_path / "project" / "harness", name, text)
    (tmp_path / "project/harness/run.sh").chmod(0o755)
    with Connections(config.load_inventory(tmp_path / "project/hosts.yaml").timeouts) as connections:
        built = Project(folder=tmp_path, connections=connections)
        assert built.sync().pushed
        yield built
