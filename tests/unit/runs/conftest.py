"""The fixture that ends what a test has started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from evalhost import HARNESS, EvalHost, processes_of, stage, write_files

from remote_payload.agent import runs


@pytest.fixture
def eval_host(tmp_path: Path) -> Iterator[EvalHost]:
    """Ends with no process of its runs left."""
    host = EvalHost(tmp_path)
    write_files(host.remote, HARNESS)
    stage(host.workdir)
    yield host
    for row in runs.list_runs(str(host.workdir)):
        for pid in processes_of(row["id"], host.folder(row["id"])):
            os.kill(pid, 9)
