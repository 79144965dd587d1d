"""The fixture that ends what a test has started."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from evalhost import HARNESS, EvalHost, processes_of, stage, write_files

from remote_payload.agent import incarnation, runs, scratch


@pytest.fixture
def eval_host(tmp_path: Path) -> Iterator[EvalHost]:
    """Ends with no process of its runs left."""
    host = EvalHost(tmp_path)
    write_files(host.remote, HARNESS)
    stage(host.workdir)
    yield host
    for row in runs.list_runs(str(host.workdir)):
        started = scratch.read_json(str(host.folder(row["id"]) / "started.json"))
        if started and incarnation.look(started, row["id"]) == "alive":
            os.kill(started["pid"], signal.SIGTERM)
            host.end(row["id"])
        for pid in processes_of(row["id"], host.folder(row["id"])):
            os.kill(pid, signal.SIGKILL)
