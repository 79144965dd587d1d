"""Right before an evaluation starts it is looked again at what may have changed: a training here, memory, disk."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from evalhost import EvalHost, wait_until

from remote_payload.agent import lookagain
from remote_payload.agent.errors import AgentError

UNTIL = (
    "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.05)\nopen(sys.argv[2], 'w').write('{}')"
)
PATIENCE = 60.0
"""seconds: an evaluation yields to everything"""
QUICK = ["{python}", "-c", "import sys; open(sys.argv[1], 'w').write('{}')", "{result}"]


@contextmanager
def training(pidfile: Path) -> Iterator[int]:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
    pidfile.write_text(str(child.pid))
    try:
        yield child.pid
    finally:
        child.kill()
        child.wait()


def trains(pidfile: Path, allowed: bool = False) -> dict[str, Any]:
    run = {"name": "dflash", "process": {"pidfile": str(pidfile)}, "log": None, "progress": None}
    return {"allowed": allowed, "runs": [run]}


def test_a_training_that_began_after_the_plan_refuses_the_launch_by_name(eval_host: EvalHost, tmp_path: Path) -> None:
    with training(tmp_path / "pid") as pid, pytest.raises(AgentError) as refused:
        eval_host.launch(QUICK, trains=trains(tmp_path / "pid"))
    assert refused.value.kind == "refused"
    assert f"a training runs here now: dflash (process {pid})" in refused.value.message
    assert "--allow-on-training-host" in refused.value.hint
    assert not (eval_host.workdir / "runs").exists(), "nothing was begun"


def test_one_that_is_allowed_runs_beside_the_training_that_is_there_now(eval_host: EvalHost, tmp_path: Path) -> None:
    with training(tmp_path / "pid"):
        row = eval_host.end(eval_host.launch(QUICK, trains=trains(tmp_path / "pid", allowed=True))["id"], PATIENCE)
    assert row["state"] == "succeeded", row
    assert "beside dflash" in row["rung"]
    started = json.loads((eval_host.workdir / "runs" / row["id"] / "started.json").read_text())
    assert started["beside"] == ["dflash"]


def test_a_training_that_ended_since_the_plan_is_no_neighbour_any_more(eval_host: EvalHost, tmp_path: Path) -> None:
    with training(tmp_path / "pid"):
        pass
    planned = {"trainings": [], "unseen": ["dflash"]}
    row = eval_host.end(eval_host.launch(QUICK, trains=trains(tmp_path / "pid"), beside=planned)["id"], PATIENCE)
    assert row["state"] == "succeeded" and "beside" not in row["rung"], row


def test_a_queued_run_is_refused_when_its_turn_comes_beside_a_training(eval_host: EvalHost, tmp_path: Path) -> None:
    go, pidfile = tmp_path / "go", tmp_path / "pid"
    first = eval_host.launch(["{python}", "-c", UNTIL, str(go), "{result}"])["id"]
    second = eval_host.launch(QUICK, key="key-2", trains=trains(pidfile))["id"]
    third = eval_host.launch(QUICK, key="key-3")["id"]
    wait_until(lambda: eval_host.row(second)["state"] == "queued")
    with training(pidfile) as pid:
        go.write_text("")
        row = eval_host.end(second, PATIENCE)
    assert (row["state"], row["started_at"]) == ("refused", None), row
    assert f"a training runs here now: dflash (process {pid})" in row["reason"]
    assert not (eval_host.folder(second) / "log").exists(), "nothing of it was started"
    assert eval_host.end(first, PATIENCE)["state"] == "succeeded"
    assert eval_host.end(third, PATIENCE)["state"] == "succeeded", "the queue moves on"


def test_memory_is_looked_at_again(eval_host: EvalHost) -> None:
    with pytest.raises(AgentError, match="bytes of memory are available"):
        lookagain.look_again(str(eval_host.workdir), {"limits": {"memory": 1 << 60}})


def test_what_an_earlier_version_launched_is_taken_at_its_plans_word(eval_host: EvalHost) -> None:
    planned = {"trainings": [], "unseen": ["dflash"]}
    assert lookagain.look_again(str(eval_host.workdir), {"beside": planned})["beside"] == planned
