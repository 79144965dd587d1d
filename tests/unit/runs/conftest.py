"""The fixture that ends what a test has started."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from evalhost import HARNESS, EvalHost, processes_of, stage, write_files

from remote_payload.agent import incarnation, runs


@pytest.fixture
def eval_host(tmp_path: Path) -> Iterator[EvalHost]:
    """Ends with no process of its runs left."""
    host = EvalHost(tmp_path)
    write_files(host.remote, HARNESS)
    stage(host.workdir)
    yield host
    for row in runs.list_runs(str(host.workdir)):
        started = json.loads((host.folder(row["id"]) / "started.json").read_text() if row["started_at"] else "{}")
        if started and incarnation.look(started, row["id"]) == "alive":
            os.kill(started["pid"], signal.SIGTERM)
            host.end(row["id"])
        for pid in processes_of(row["id"], host.folder(row["id"])):
            os.kill(pid, signal.SIGKILL)
