"""eval-latest while the way to a box is cut, on real OpenSSH hosts, with a small evaluation of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.hosts
ROOT = Path(__file__).parents[2]
EVALUATE = """\
import json, sys, time
time.sleep({seconds})
json.dump({{"score": 1.5}}, open(sys.argv[2], "w"))
"""


@dataclass
class Project:
    """A laptop's folder with a job whose evaluation takes some seconds; boxes `train` and `eval`."""

    folder: Path
    hosts: Any

    @property
    def eval_home(self) -> Path:
        return Path(self.hosts.state) / "eval" / "fs" / "p" / "root"

    def furnish(self, seconds: float) -> None:
        import torch

        checkpoint = Path(self.hosts.state) / "train" / "fs" / "p" / "root" / "small" / "step_7" / "checkpoint.pt"
        checkpoint.parent.mkdir(parents=True)
        torch.save({"model": {"w": torch.randn(500_000)}, "step": 7}, checkpoint)
        os.utime(checkpoint, (1, 1))
        (self.folder / "harness").mkdir()
        (self.folder / "jobs").mkdir()
        (self.folder / "harness" / "ev.py").write_text(EVALUATE.format(seconds=seconds))
        (self.folder / "hosts.yaml").write_text(
            f"""\
hosts:
  train: {{ssh: root@train, roles: [train], python: {sys.executable}}}
  eval: {{ssh: root@eval, roles: [eval], python: {sys.executable}, workdir: ~/cut/orch}}
timeouts: {{poll: 200ms, heartbeat: 500ms, dead: 4s, agent_dead: 5s, connect: 2s}}
runs: {{r: {{host: train, checkpoints: /root/small, job: j}}}}
"""
        )
        (self.folder / "jobs" / "j.yaml").write_text(
            """\
harness: {local: harness, remote: ~/cut/eval}
command: ["{python}", ev.py, "{checkpoint}", "{result}"]
result: {file: r.json, headline: score}
"""
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        own = {"ORCH_HOME": str(self.folder / "state"), "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(
            [sys.executable, "-c", "from orchestrator.cli import main; main()", *words, "--json"],
            cwd=self.folder,
            env={**os.environ, **own},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        shutil.rmtree(self.eval_home / "cut", ignore_errors=True)
        shutil.rmtree(Path(self.hosts.state) / "train" / "fs" / "p" / "root" / "small", ignore_errors=True)


@pytest.fixture
def project(testhosts: Any, tmp_path: Path) -> Iterator[Project]:
    made = Project(folder=tmp_path, hosts=testhosts)
    yield made
    made.close()


def wait_until(happened: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.05)


@pytest.mark.full
def test_following_outlasts_an_outage_longer_than_the_time_to_connect(testhosts: Any, project: Project) -> None:
    """The laptop's network is gone for a while: connecting again fails, and is tried again."""
    project.furnish(seconds=3)
    typed = project.start("eval-latest")
    wait_until(lambda: list(project.eval_home.glob("cut/orch/runs/*/started.json")))
    time.sleep(1)  # the launch has its answer: one that is cut off is another story, and ends with exit 4
    with testhosts.unplugged("eval"):
        time.sleep(9)
    out, err = typed.communicate(timeout=90)
    document = json.loads(out)
    assert typed.returncode == 0, err
    assert document["run"]["state"] == "succeeded" and len(document["warnings"]) >= 2


@pytest.mark.full
def test_a_watch_keeps_one_connection_and_takes_it_up_again_after_an_outage(testhosts: Any, project: Project) -> None:
    """The training box is cut off when a checkpoint appears there; what was missed is evaluated afterwards."""
    import torch

    project.furnish(seconds=0.5)
    hosts = project.folder / "hosts.yaml"
    hosts.write_text(hosts.read_text().replace("timeouts: {", "timeouts: {watch: 1s, "))
    typed = project.start("watch", "r", "--until", "8")
    assert typed.stdout is not None
    told = [json.loads(typed.stdout.readline())]
    wait_until(lambda: list(project.folder.glob("state/watch/*.json")))
    ends = local_ends(typed.pid, testhosts.address("train"))
    time.sleep(4)
    assert len(ends) == 1 and local_ends(typed.pid, testhosts.address("train")) == ends, "three looks, one connection"
    with testhosts.unplugged("train"):
        saved = Path(testhosts.state) / "train" / "fs" / "p" / "root" / "small" / "step_8" / "checkpoint.pt"
        saved.parent.mkdir()
        torch.save({"model": {"w": torch.randn(1000)}, "step": 8}, saved)
        os.utime(saved, (2, 2))
        time.sleep(6)
    out, err = typed.communicate(timeout=90)
    told += [json.loads(line) for line in out.splitlines()]
    assert typed.returncode == 0, err
    kinds = [event["event"] for event in told]
    assert kinds.count("lost") == kinds.count("back") == kinds.count("result") == 1
    assert [event["step"] for event in told if event["event"] == "result"] == [8]


def local_ends(pid: int, address: str) -> set[str]:
    """Local ends of a process's connections to an address."""
    rows = subprocess.run(["ss", "-Htnp", "dst", address], capture_output=True, text=True, check=True).stdout
    return {row.split()[3] for row in rows.splitlines() if f"pid={pid}," in row and row.startswith("ESTAB")}
