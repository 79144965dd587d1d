"""Runs on real hosts: cut links, restarted and emptied hosts, a kernel that kills for memory, a followed log."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small import RESULT, Small, wait_until

pytestmark = pytest.mark.hosts


def slow(seconds: float) -> str:
    """An evaluation that takes so long."""
    return f"import time; print('begun', flush=True); time.sleep({seconds})\n" + RESULT


@pytest.fixture
def boxes(testhosts: Any, tmp_path: Path) -> Iterator[Small]:
    """A project on `train` and `eval`; not furnished yet."""
    homes = {name: Path(testhosts.state) / name / "fs" / "p" / "root" for name in ("train", "eval")}
    hosts = (
        f"  train: {{ssh: root@train, roles: [train], python: {sys.executable}}}\n"
        f"  box: {{ssh: root@eval, roles: [eval], python: {sys.executable}, workdir: ~/orch}}\n"
    )
    made = Small(
        folder=tmp_path / "laptop",
        train=homes["train"],
        evaluate=homes["eval"],
        hosts=hosts,
        inside={"train": "/root", "evaluate": "/root"},
        host_process=Path(testhosts.state) / "eval" / "pid",
        timeouts="{poll: 200ms, heartbeat: 500ms, dead: 3s, agent_dead: 4s, connect: 3s}",
    )
    yield made
    made.close()
    for home in homes.values():
        for name in ("orch", "eval", "small"):
            shutil.rmtree(home / name, ignore_errors=True)


def begun(boxes: Small, run_id: str) -> None:
    log = boxes.runs / run_id / "log"
    wait_until(lambda: log.exists() and b"begun" in log.read_bytes())


def row(boxes: Small, run_id: str) -> dict[str, Any]:
    return {one["id"]: one for one in boxes.json("runs")["runs"]}[run_id]


CUTS = {
    "sync": "eval/.orch/synced.json",
    "ship": "orch/checkpoints/.incoming-*/journal",
    "launch": "orch/runs/[!.]*",
    "follow": "orch/runs/*/log",
    "collect": "orch/runs/*/exit.json",
}


@pytest.mark.full
@pytest.mark.parametrize("step", CUTS)
def test_a_link_cut_in_this_step_for_longer_than_the_keepalive_costs_nothing(
    testhosts: Any, boxes: Small, step: str
) -> None:
    boxes.furnish(slow(3))
    inventory = boxes.folder / "hosts.yaml"
    inventory.write_text(inventory.read_text().replace("job: j}", "job: j, limit_rate: 150KB}"))
    typed = boxes.start("eval-latest", "--yes", "--json")
    deadline = time.monotonic() + 60
    while typed.poll() is None and not any(boxes.evaluate.glob(CUTS[step])):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    if step == "follow":
        time.sleep(1.5)  # until the laptop knows that it has begun
    with testhosts.unplugged("eval"):
        time.sleep(6)
    out, err = typed.communicate(timeout=100)
    assert typed.returncode in (0, 4, 7), err
    if step == "follow":
        assert typed.returncode == 0 and json.loads(out)["run"]["state"] == "succeeded"
    document = boxes.json("eval-latest", "--yes")
    assert document["run"]["state"] == "succeeded" and document["result"]["headline"]["value"] == 1.5
    assert [one["state"] for one in boxes.json("runs")["runs"]].count("succeeded") == 1


def test_a_restarted_host_has_lost_its_run_says_why_and_runs_it_again(testhosts: Any, boxes: Small) -> None:
    boxes.furnish(slow(60))
    run_id = boxes.detach()
    begun(boxes, run_id)
    testhosts.reboot("eval")
    lost = row(boxes, run_id)
    assert lost["state"] == "lost" and lost["reason"].startswith("the container was restarted"), lost
    boxes.code(RESULT)
    document = boxes.json("rerun", run_id)
    assert document["run"]["state"] == "succeeded"


def test_a_follower_of_a_host_that_comes_back_empty_hears_that_the_run_is_lost(testhosts: Any, boxes: Small) -> None:
    boxes.furnish(slow(60))
    typed = boxes.start("eval-latest", "--yes", "--json")
    wait_until(boxes.ids)
    (run_id,) = boxes.ids()
    begun(boxes, run_id)
    testhosts.wipe("eval")
    out, err = typed.communicate(timeout=100)
    document = json.loads(out)
    assert typed.returncode == 8 and document["run"]["state"] == "lost", (out, err)
    assert "came back empty" in row(boxes, run_id)["reason"]
    boxes.code(RESULT)
    again = boxes.json("rerun", run_id)
    assert again["run"]["state"] == "succeeded" and again["run"]["id"] != run_id


def test_a_kill_for_want_of_memory_is_told_from_any_other(testhosts: Any, boxes: Small) -> None:
    greedy = "held = []\nwhile True: held.append(bytearray(b'x' * (8 << 20)))\n"
    boxes.furnish(greedy)
    testhosts.limit("eval", str(400 << 20))
    try:
        run_id = boxes.detach()
        end = boxes.wait_for_end(run_id)
    finally:
        testhosts.limit("eval")
    assert (end["state"], end["signal"]) == ("failed", 9) and "out of memory" in end["reason"], end


@pytest.mark.full
def test_logs_survive_a_cut_and_say_each_line_once(testhosts: Any, boxes: Small) -> None:
    boxes.furnish("import time\nfor i in range(60): print('line', i, flush=True); time.sleep(0.2)\n" + RESULT)
    run_id = boxes.detach()
    typed = boxes.start("logs", "-f", "--all", run_id)
    time.sleep(3)
    with testhosts.unplugged("eval"):
        time.sleep(6)
    out, err = typed.communicate(timeout=100)
    assert typed.returncode == 0 and "connecting again" in err, err
    assert out.splitlines() == [f"line {i}" for i in range(60)]
    wait_until(lambda: " -I -S -B -c" not in testhosts.sh("eval", "ps -eo args=").stdout, 20)


def test_cancel_reaches_what_another_connection_started(testhosts: Any, boxes: Small) -> None:
    boxes.furnish("import subprocess; subprocess.Popen(['sleep', '300'], start_new_session=True)\n" + slow(60))
    run_id = boxes.detach()
    begun(boxes, run_id)
    assert "sleep 300" in testhosts.sh("eval", "ps -eo args=").stdout
    document = boxes.json("cancel", run_id, "--grace", "5")
    assert document["run"]["state"] == "cancelled" and document["left"] == []
    assert "sleep 300" not in testhosts.sh("eval", "ps -eo args=").stdout
