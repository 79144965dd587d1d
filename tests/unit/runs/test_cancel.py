"""Cancelling: the run's own processes, all of them and nothing else, by identity."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from evalhost import EvalHost, Line, processes_of, stage, wait_until

from remote_payload.agent import belongings, cancelling, identity, incarnation, runs
from remote_payload.agent.errors import AgentError

SLEEP = ["{python}", "-c", "import time; time.sleep(60)"]
STUBBORN = """\
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    subprocess.Popen([sys.executable, "-c", child])
    os._exit(0)
print("ready", flush=True)
time.sleep(60)
"""


def cancel(host: EvalHost, run_id: str, grace: float = 5.0) -> dict[str, Any]:
    return cancelling.cancel_answer({"workdir": str(host.workdir), "id": run_id, "grace": grace}, Line())


def ready(host: EvalHost, run_id: str) -> None:
    log = host.folder(run_id) / "log"
    wait_until(lambda: log.exists() and b"ready" in log.read_bytes())


def supervisor(host: EvalHost, run_id: str) -> dict[str, Any]:
    record = json.loads((host.folder(run_id) / "started.json").read_text())
    assert isinstance(record, dict)
    return record


def test_a_cancelled_run_says_so_and_nothing_of_it_is_left(eval_host: EvalHost) -> None:
    run_id = eval_host.launch(SLEEP)["id"]
    answer = cancel(eval_host, run_id)
    assert (answer["before"], answer["run"]["state"], answer["left"]) == ("running", "cancelled", [])
    assert answer["run"]["signal"] == signal.SIGTERM, "asked first"
    assert not processes_of(run_id, eval_host.folder(run_id))
    again = cancel(eval_host, run_id)
    assert (again["before"], again["run"]["state"]) == ("cancelled", "cancelled")
    assert eval_host.launch(SLEEP)["id"] != run_id, "a cancelled run may be tried again"


def test_what_ignores_term_and_what_left_its_session_is_killed_after_the_grace(eval_host: EvalHost) -> None:
    run_id = eval_host.launch(["{python}", "-c", STUBBORN])["id"]
    ready(eval_host, run_id)
    assert len(processes_of(run_id, eval_host.folder(run_id))) >= 4
    answer = cancel(eval_host, run_id, grace=0.5)
    assert (answer["run"]["state"], answer["run"]["signal"]) == ("cancelled", signal.SIGKILL)
    assert answer["left"] == [] and not processes_of(run_id, eval_host.folder(run_id))


def test_of_two_runs_side_by_side_only_one_dies(eval_host: EvalHost) -> None:
    stage(eval_host.workdir, "other")
    side_by_side = {"limits": {"evaluations": 2}}
    first = eval_host.launch(SLEEP, **side_by_side)["id"]
    second = eval_host.launch(SLEEP, "key-2", checkpoint="other", **side_by_side)["id"]
    cancel(eval_host, first)
    assert eval_host.row(first)["state"] == "cancelled"
    assert eval_host.row(second)["state"] == "running" and len(processes_of(second, eval_host.folder(second))) == 2


def test_a_run_that_ends_by_itself_meanwhile_keeps_its_own_end(eval_host: EvalHost) -> None:
    run_id = eval_host.launch(["{python}", "eval.py", "{result}"])["id"]
    eval_host.end(run_id)
    answer = cancel(eval_host, run_id)
    assert (answer["before"], answer["run"]["state"]) == ("succeeded", "succeeded")


def test_what_a_killed_supervisor_left_is_said_and_then_ended(eval_host: EvalHost) -> None:
    run_id = eval_host.launch(["{python}", "-c", STUBBORN])["id"]
    ready(eval_host, run_id)
    os.kill(supervisor(eval_host, run_id)["pid"], signal.SIGKILL)
    wait_until(lambda: eval_host.row(run_id)["state"] == "lost")
    row = eval_host.row(run_id)
    assert "killed from outside" in row["reason"] and f"orch cancel {run_id}" in row["reason"]
    left = processes_of(run_id, eval_host.folder(run_id))
    assert left and all(str(pid) in row["reason"] for pid in left)
    answer = cancel(eval_host, run_id, grace=0.3)
    assert (answer["run"]["state"], answer["left"]) == ("lost", [])
    assert not processes_of(run_id, eval_host.folder(run_id))
    assert "still running" not in eval_host.row(run_id)["reason"]


def test_a_child_that_outlives_its_supervisor_is_found_by_its_session_without_its_environment(
    eval_host: EvalHost,
) -> None:
    bare = "import ctypes, os, sys, time\nctypes.CDLL(None).prctl(1, 0, 0, 0, 0)\n"  # stays when its parent dies
    bare += "os.execve(sys.executable, [sys.executable, '-c', \"print('ready', flush=True); "
    bare += 'import time; time.sleep(60)"], {})'
    run_id = eval_host.launch(["{python}", "-c", bare])["id"]
    ready(eval_host, run_id)
    record = supervisor(eval_host, run_id)
    os.kill(record["pid"], signal.SIGKILL)
    wait_until(lambda: eval_host.row(run_id)["state"] == "lost")
    answer = cancel(eval_host, run_id)
    assert incarnation.look(record["child"]) == "gone" or answer["left"] == []
    wait_until(lambda: incarnation.look(record["child"]) == "gone")


def test_a_supervisor_that_does_not_react_is_stood_in_for(eval_host: EvalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remote_payload.agent.launcher.SLACK", 0.3)
    run_id = eval_host.launch(SLEEP)["id"]
    os.kill(supervisor(eval_host, run_id)["pid"], signal.SIGSTOP)
    answer = cancel(eval_host, run_id, grace=0.3)
    assert (answer["run"]["state"], answer["left"]) == ("cancelled", [])
    assert not processes_of(run_id, eval_host.folder(run_id))


def test_a_process_that_took_over_the_number_is_not_signalled(eval_host: EvalHost) -> None:
    run_id = eval_host.launch(SLEEP)["id"]
    wait_until(lambda: supervisor(eval_host, run_id)["child"])
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        file = eval_host.folder(run_id) / "started.json"
        record = json.loads(file.read_text())
        recycled = {**record, "pid": stranger.pid, "child": {**record["child"], "pid": stranger.pid}}
        file.write_text(json.dumps(recycled))
        assert cancel(eval_host, run_id, grace=1.0)["left"] == []
        assert stranger.poll() is None and not processes_of(run_id, eval_host.folder(run_id))
        seen = identity.read_stat(stranger.pid)
        assert seen is not None
        belongings.tell(seen._replace(start_ticks=seen.start_ticks - 1), signal.SIGKILL)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_run_of_another_machine_that_shares_the_folder_is_refused(eval_host: EvalHost) -> None:
    run_id = eval_host.launch(SLEEP)["id"]
    file = eval_host.folder(run_id) / "started.json"
    record = json.loads(file.read_text())
    wait_until(lambda: json.loads(file.read_text())["child"])
    file.write_text(json.dumps({**record, "incarnation": "other/1/1", "node": "elsewhere"}))
    with pytest.raises(AgentError, match="watched on elsewhere"):
        cancel(eval_host, run_id)
    file.write_text(json.dumps(record))
    assert eval_host.row(run_id)["state"] == "running"


def test_a_full_disk_does_not_keep_a_run_from_being_cancelled(eval_host: EvalHost) -> None:
    run_id = eval_host.launch(SLEEP)["id"]
    (eval_host.folder(run_id) / "cancel.json").mkdir()  # can't be written, as on a full disk
    assert cancel(eval_host, run_id)["run"]["state"] == "cancelled"


def test_an_unknown_run_is_said(eval_host: EvalHost) -> None:
    with pytest.raises(AgentError, match="no run"):
        cancel(eval_host, "nothing")
    assert runs.list_runs(str(eval_host.workdir)) == []
