"""One evaluation at a time: a queue on the host that moves on by itself."""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from evalhost import EvalHost, processes_of, stage, wait_until
from test_cancel import STUBBORN, cancel, ready, supervisor

from remote_payload.agent import incarnation, turn
from remote_payload.agent.turn import Turn

SLEEP = ["{python}", "-c", "import time; time.sleep(60)"]
NOTE = "import sys, time; t = time.monotonic(); time.sleep(0.3); "
NOTE += "open(sys.argv[1], 'w').write('{\"from\": %f, \"to\": %f}' % (t, time.monotonic()))"
TIMED = ["{python}", "-c", NOTE, "{result}"]


def launch(host: EvalHost, number: int, command: list[str], at_once: int = 1) -> str:
    identity = f"checkpoint-{number}"
    if not (host.workdir / "checkpoints" / identity).exists():
        stage(host.workdir, identity)
    limits = {"evaluations": at_once}
    launched = host.launch(command, f"key-{number}", checkpoint=identity, limits=limits)
    return str(launched["id"])


def span(host: EvalHost, run_id: str) -> tuple[float, float]:
    found = json.loads((host.folder(run_id) / "eval_results.json").read_text())
    return found["from"], found["to"]


def test_runs_go_one_after_another_in_the_order_they_came(eval_host: EvalHost) -> None:
    ids = [launch(eval_host, number, TIMED) for number in range(4)]
    second = eval_host.row(ids[1])
    assert second["state"] in ("queued", "running", "succeeded")
    for run_id in ids:
        assert eval_host.end(run_id, 60)["state"] == "succeeded"
    spans = [span(eval_host, run_id) for run_id in ids]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans)), spans
    assert list((eval_host.workdir / "queue").iterdir()) == []


def test_a_queued_run_says_whom_it_waits_for_and_starts_no_clock(eval_host: EvalHost) -> None:
    first = launch(eval_host, 1, SLEEP)
    second = launch(eval_host, 2, TIMED)
    row = eval_host.row(second)
    assert (row["state"], row["reason"], row["started_at"]) == ("queued", f"waits behind run {first}", None)
    assert not (eval_host.folder(second) / "log").exists()
    cancel(eval_host, first)
    assert eval_host.end(second)["state"] == "succeeded"


def test_as_many_run_at_once_as_the_host_allows(eval_host: EvalHost) -> None:
    ids = [launch(eval_host, number, SLEEP, at_once=2) for number in range(3)]
    wait_until(lambda: [eval_host.row(run_id)["state"] for run_id in ids] == ["running", "running", "queued"])
    cancel(eval_host, ids[0])
    wait_until(lambda: eval_host.row(ids[2])["state"] == "running")


def test_a_queued_run_can_be_cancelled_and_those_behind_it_move_up(eval_host: EvalHost) -> None:
    first, second, third = (launch(eval_host, number, SLEEP) for number in range(3))
    answer = cancel(eval_host, second)
    assert (answer["before"], answer["run"]["state"]) == ("queued", "cancelled")
    assert eval_host.row(third)["reason"] == f"waits behind run {first}"
    cancel(eval_host, first)
    wait_until(lambda: eval_host.row(third)["state"] == "running")


def test_a_killed_waiting_supervisor_is_a_lost_run_and_holds_nobody_up(eval_host: EvalHost) -> None:
    first, second, third = (launch(eval_host, number, SLEEP) for number in range(3))
    os.kill(supervisor(eval_host, second)["pid"], signal.SIGKILL)
    wait_until(lambda: eval_host.row(second)["state"] == "lost")
    assert "while it waited" in eval_host.row(second)["reason"]
    cancel(eval_host, first)
    wait_until(lambda: eval_host.row(third)["state"] == "running")


def test_what_a_killed_supervisor_left_is_ended_before_the_next_run_begins(eval_host: EvalHost) -> None:
    first = launch(eval_host, 1, ["{python}", "-c", STUBBORN])
    ready(eval_host, first)
    second = launch(eval_host, 2, SLEEP)
    os.kill(supervisor(eval_host, first)["pid"], signal.SIGKILL)
    wait_until(lambda: eval_host.row(second)["state"] == "running", 30)
    assert not processes_of(first, eval_host.folder(first))
    row = eval_host.row(first)
    assert row["state"] == "lost" and "ended by the next run" in row["reason"] and row["ended_at"]


def test_a_ticket_of_a_process_that_is_not_that_one_any_more_is_stale(tmp_path: Path) -> None:
    (tmp_path / "queue").mkdir()
    holder = {**incarnation.record(os.getpid()), "run": "a", "folder": str(tmp_path / "runs" / "a")}
    (tmp_path / "queue" / "00000003").write_text(json.dumps({**holder, "start_ticks": 1}))
    (tmp_path / "queue" / "00000004").write_text(json.dumps({**holder, "incarnation": "other/1/1"}))
    mine = Turn(str(tmp_path), "b", 1)
    mine.take()
    assert mine.come() and [number for number, _ in turn.tickets(str(tmp_path / "queue"))] == [5]
    mine.leave()
    assert turn.tickets(str(tmp_path / "queue")) == []


VISIT = """\
import os, sys, time
from remote_payload.agent.turn import Turn
folder, name = sys.argv[1:]
turn = Turn(folder, name, 1)
turn.take()
while not turn.come():
    time.sleep(0.002)
os.mkdir(folder + "/inside")  # fails where somebody is in there
time.sleep(0.01)
os.rmdir(folder + "/inside")
turn.leave()
"""


def test_however_many_come_at_once_only_one_goes(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    visitors = [
        subprocess.Popen(
            [sys.executable, "-c", VISIT, str(tmp_path), f"run-{number}"],
            env={**environment, "ORCH_RUN_ID": f"run-{number}"},
            stderr=subprocess.PIPE,
        )
        for number in range(12)
    ]
    said = [visitor.communicate(timeout=60)[1] for visitor in visitors]
    assert said == [b""] * 12 and turn.tickets(str(tmp_path / "queue")) == []


def test_a_disk_without_hard_links_has_a_queue_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr("os.link", refuse)
    first, second = Turn(str(tmp_path), "a", 1), Turn(str(tmp_path), "b", 1)
    first.take()
    second.take()
    assert first.come() and [number for number, _ in turn.tickets(str(tmp_path / "queue"))] == [1, 2]
