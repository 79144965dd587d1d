"""The whole story on real OpenSSH hosts: a live trainer on `train`, an older harness on `eval`, a laptop beside."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from realstage import real_stage
from tracing import offences, processes, traced
from world import Stage, World, by_hand

pytestmark = pytest.mark.hosts
SAME = ("acceptance_length", "positions", "ddtree")


@pytest.fixture
def stage(testhosts, world: World, tmp_path: Path) -> Iterator[Stage]:  # type: ignore[no-untyped-def]
    with real_stage(testhosts, world, tmp_path) as built:
        yield built


def test_the_whole_story_on_real_hosts_leaves_the_training_box_untouched(testhosts, stage: Stage) -> None:  # type: ignore[no-untyped-def]
    if shutil.which("strace") is None:
        raise RuntimeError("strace is missing: apt-get install strace")
    pid = stage.start_training()
    with traced(testhosts, "train") as folder:
        before = stage.json("status")["runs"][0]
        assert before["process"]["pid"] == pid and before["process"]["state"] == "running"
        assert before["latest"]["step"] == 120

        check = stage.orch("sync-harness", "--check")
        assert check.returncode == 1 and "-# edited on the box" in check.stdout
        assert stage.orch("sync-harness", "--yes").returncode == 0
        assert stage.orch("sync-harness", "--check").returncode == 0

        assert stage.orch("checkpoints").returncode == 0
        report = stage.json("eval-latest")
    assert report["run"]["state"] == "succeeded" and report["receipt"]["verdict"] == "undisturbed"
    result = json.loads(Path(report["result"]["file"]).read_text())
    hand = by_hand(stage, stage.train / "checkpoints" / "step_120", stage.folder / "by_hand.json")
    assert {key: result[key] for key in SAME} == {key: hand[key] for key in SAME}

    after = stage.json("status")["runs"][0]
    assert after["process"] == before["process"], "same pid, same start time"
    assert after["progress"]["step"] > before["progress"]["step"], "and it went on stepping"
    mine = processes(folder)
    assert len(mine) >= 5, "status, checkpoints and eval-latest started processes there"
    assert offences(mine) == []


def test_the_tracer_sees_what_it_must(testhosts, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """A trace that finds nothing proves nothing unless it finds what is there."""
    with traced(testhosts, "train") as folder:
        ssh = ["ssh", "-F", str(testhosts.config), "--", "root@train"]
        subprocess.run([*ssh, "echo x > /tmp/written; sleep 30 & kill $!; mkdir /tmp/made"], check=True, env=os.environ)
        subprocess.run([*ssh, "kill -0 1; kill -CONT 1"], check=True, env=os.environ)
    found = "\n".join(offences(processes(folder)))
    assert "/tmp/written" in found and "/tmp/made" in found and "SIGCONT" in found
    testhosts.sh("train", "rm -r /tmp/written /tmp/made")
