"""An evaluation on a host where a training lives, and on any host that has GPUs: what it gets, and what stops it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from evalhost import EvalHost, Line, processes_of, wait_until

from remote_payload.agent import beside, descendants, guards, hostinfo, identity, runs
from remote_payload.agent.errors import AgentError

SLEEP = ["{python}", "-c", "import time; time.sleep(60)"]
BURN = "while True: pass"
TRAIN = """
import os, sys, time
log, slow = sys.argv[1:]
for step in range(10**9):
    with open(log, "a") as file:
        file.write(time.strftime("%Y-%m-%d %H:%M:%S") + f" step {step} loss 2.0\\n")
    time.sleep(0.5 if os.path.exists(slow) else 0.05)
"""
SEEN = """
import json, os, sys
oom = open("/proc/self/oom_score_adj").read().strip()
cores = sorted(os.sched_getaffinity(0))
json.dump({"cores": cores, "oom": oom, "threads": os.environ["OMP_NUM_THREADS"]}, open(sys.argv[1], "w"))
"""
GRAB = """
held = []
while True:
    held.append(bytearray(b"x" * (8 << 20)))
"""


@contextmanager
def living(*words: str, core: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, *words], start_new_session=True)
    try:
        if core is not None:
            os.sched_setaffinity(child.pid, {core})
        yield child
    finally:
        child.kill()
        child.wait()


def neighbour(pid: int, **more: Any) -> dict[str, Any]:
    return {"name": "dflash", "identity": identity.of_pid(pid), "ranks": [pid], "log": None, "progress": None, **more}


@pytest.fixture
def cores() -> list[int]:
    found = sorted(os.sched_getaffinity(0))
    if len(found) < 2:
        pytest.skip("one core only")
    return found


def test_it_gets_the_cores_and_the_memory_that_a_pinned_training_leaves(eval_host: EvalHost, cores: list[int]) -> None:
    with living("-c", BURN, core=cores[0]) as training:
        run_id = eval_host.launch(
            ["{python}", "-c", SEEN, "{result}"], beside={"trainings": [neighbour(training.pid)], "unseen": ["other"]}
        )["id"]
        row = eval_host.end(run_id)
        assert training.poll() is None
    assert row["state"] == "succeeded", row
    seen = identity.read_proc(str(eval_host.folder(run_id) / "eval_results.json"))
    assert seen is not None
    found = json.loads(seen)
    assert found == {"cores": cores[1:], "oom": "1000", "threads": str(len(cores) - 1)}
    rung = row["rung"]
    assert "memory by" in rung and "first to go when memory runs out" in rung and "nice 19" in rung
    assert f"cores {','.join(map(str, cores[1:]))}" in rung
    assert "beside dflash: memory, run queue and steps watched" in rung
    assert "beside other, which can't be seen: only memory watched" in rung


def test_a_training_that_may_run_anywhere_keeps_as_many_cores_as_it_uses(cores: list[int]) -> None:
    code = "import threading\ndef burn():\n    while True: pass\n" + BURN
    with living("-c", code) as training:
        found = beside.Beside({"trainings": [neighbour(training.pid)]})
    assert 1 <= len(found.cores) <= max(1, len(cores) - 1)


def test_an_evaluation_that_grabs_memory_is_stopped_and_training_lives(eval_host: EvalHost) -> None:
    reserve = hostinfo.memory()["available"] - (300 << 20)
    with living("-c", "import time; time.sleep(60)") as training:
        asked = {"trainings": [neighbour(training.pid)], "reserve": reserve}
        row = eval_host.end(eval_host.launch(["{python}", "-c", GRAB], beside=asked)["id"], 30)
        assert training.poll() is None
    assert row["state"] == "failed" and "memory" in row["reason"], row


def test_memory_that_others_take_stops_it_too() -> None:
    guard = beside.MemoryLeft(0.0, 2 * hostinfo.memory()["available"] + (4 << 30))
    assert "bytes of memory are left on this host" in guard.look([])
    assert beside.MemoryLeft(0.0, 1 << 20).look([]) == ""


def test_without_room_above_the_reserve_nothing_is_started(eval_host: EvalHost) -> None:
    with living("-c", "import time; time.sleep(60)") as training:
        asked = {"trainings": [neighbour(training.pid)], "reserve": 1 << 50}
        with pytest.raises(AgentError, match="kept for the training") as refused:
            eval_host.launch(SLEEP, beside=asked)
        with pytest.raises(AgentError, match="beside the training"):
            beside.Beside(asked).memory_limit(1 << 20)
    assert refused.value.kind == "refused" and runs.list_runs(str(eval_host.workdir)) == []
    with pytest.raises(AgentError, match="bytes of memory are available"):
        eval_host.launch(SLEEP, limits={"memory": 1 << 60})


def test_waiting_that_the_evaluation_causes_stops_it_and_waiting_by_others_does_not(
    cores: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "WAIT_WINDOW", 1.0)
    with living("-c", BURN, core=cores[0]) as training:
        one = beside.Beside({"trainings": [neighbour(training.pid)]}).trainings[0]
        with living("-c", BURN, core=cores[0]) as evaluation:
            guard = beside.Waiting(time.monotonic(), one)
            time.sleep(1.5)
            assert "dflash waited for a core" in guard.look([evaluation.pid])
            one.usual_wait = 0.0
            guard = beside.Waiting(time.monotonic(), one)
            time.sleep(1.5)
            assert guard.look([]) == "", "the same neighbour, but not ours"
            assert guard.due > time.monotonic() + beside.PATIENCE / 2
            state = identity.read_stat(evaluation.pid)
            assert state is not None and state.state == "R", "what was stopped for the measurement goes on"


def test_a_training_that_slows_down_stops_the_evaluation(eval_host: EvalHost, tmp_path: Path) -> None:
    log, slow = tmp_path / "train.log", tmp_path / "slow"
    with living("-c", TRAIN, str(log), str(slow)) as training:
        wait_until(lambda: log.exists() and log.read_text().count("step") > 60)
        asked = {"trainings": [neighbour(training.pid, log=str(log))], "window": 3}
        run_id = eval_host.launch(SLEEP, beside=asked)["id"]
        time.sleep(5)
        assert eval_host.row(run_id)["state"] == "running", "while it keeps its pace nothing is stopped"
        slow.touch()
        row = eval_host.end(run_id, 30)
        assert training.poll() is None
    assert row["state"] == "failed" and "dflash went at" in row["reason"], row
    assert not processes_of(run_id, eval_host.folder(run_id))


def test_an_ended_training_is_watched_no_longer(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(f"2026-11-30 12:00:{second:02d} step {second} loss 2.0\n" for second in range(60)))
    with living("-c", "import time; time.sleep(60)") as training:
        one = beside.Neighbour(neighbour(training.pid, log=str(log)), 60.0)
    guards_of_it = one.guards(time.monotonic())
    assert len(guards_of_it) == 2 and [guard.look([]) for guard in guards_of_it] == ["", ""]


def test_a_process_in_a_session_of_its_own_is_lowered_too(eval_host: EvalHost) -> None:
    if not os.path.exists("/proc/self/autogroup"):
        pytest.skip("a kernel without autogroups")
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'],"
    run_id = eval_host.launch(["{python}", "-c", code + " start_new_session=True)"])["id"]

    def autogroups() -> list[str]:
        pids = processes_of(run_id, eval_host.folder(run_id))
        return [_text(pid, "autogroup").strip() for pid in pids if "sleep(60)" in _text(pid, "cmdline")]

    wait_until(lambda: len(autogroups()) == 2)
    wait_until(lambda: all(text.endswith("nice 19") for text in autogroups()), 10)


def test_a_device_that_is_only_mapped_counts_as_held(tmp_path: Path) -> None:
    device = tmp_path / "kfd"
    device.write_bytes(bytes(4096))
    code = f"import mmap, os, time; held = mmap.mmap(os.open({str(device)!r}, os.O_RDWR), 4096)\n"
    code += "os.closerange(3, 99); time.sleep(60)"
    with living("-c", code) as child:
        wait_until(lambda: str(device) in _text(child.pid, "maps"), 10)
        time.sleep(0.2)
        assert str(device) not in [os.readlink(fd) for fd in Path(f"/proc/{child.pid}/fd").iterdir()]
        assert descendants.open_device([child.pid], [f"{tmp_path}/kfd"]) == (child.pid, str(device))


def test_an_evaluation_that_opens_a_device_node_is_stopped(eval_host: EvalHost, tmp_path: Path) -> None:
    node = tmp_path / "nvidia0"
    try:
        os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # reads as /dev/null does
        node.open("rb").close()
    except OSError:
        pytest.skip("no device nodes here")
    code = f"import os, time; os.open({str(node)!r}, os.O_RDWR); time.sleep(60)"
    row = eval_host.end(eval_host.launch(["{python}", "-c", code], gpu_devices=[f"{tmp_path}/nvidia*"])["id"])
    assert row["state"] == "failed" and f"opened {node} although GPUs are hidden" in row["reason"], row


def test_a_client_that_the_driver_names_is_stopped(
    eval_host: EvalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool, named = tmp_path / "bin" / "nvidia-smi", tmp_path / "named"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nsleep 0.5\necho "$@" >> {tmp_path}/asked\necho GPU-1, $(cat {named})\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    code = f"import os, time; open({str(named)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    row = eval_host.end(eval_host.launch(["{python}", "-c", code])["id"], 20)
    assert row["state"] == "failed" and "the driver names process" in row["reason"], row
    assert "--query-compute-apps=gpu_uuid,pid" in (tmp_path / "asked").read_text()


def test_a_driver_that_hangs_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexec sleep 60\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("remote_payload.agent.gpus.LIMIT_S", 0.5)
    clients = guards.Clients(time.monotonic() - 10)
    began = time.monotonic()
    assert clients.look([1]) == "" and time.monotonic() - began < 0.5
    (pid,) = clients.own
    time.sleep(0.6)
    assert clients.look([1]) == "" and clients.own == [] and clients.due > time.monotonic() + 1
    assert os.waitpid(pid, 0)[1] == 9


def test_cores_and_threads_are_capped_by_the_best_means_there_is(eval_host: EvalHost) -> None:
    run_id = eval_host.launch(["{python}", "-c", "import time; time.sleep(60)"], limits={"threads": 1})["id"]
    rung = eval_host.row(run_id)["rung"]
    assert "cores by cgroup" in rung or "cores by its thread settings" in rung
    if "cores by cgroup" in rung and Path("/sys/fs/cgroup/cpu").is_dir():
        (pid,) = [pid for pid in processes_of(run_id, eval_host.folder(run_id)) if "sleep(60)" in _text(pid, "cmdline")]
        lines = [line.split(":") for line in _text(pid, "cgroup").splitlines()]
        group = next(path for _, names, path in lines if "cpu" in names.split(","))
        assert Path(f"/sys/fs/cgroup/cpu{group}/cpu.cfs_quota_us").read_text() == "100000\n"


def _text(pid: int, name: str) -> str:
    return (identity.read_proc(f"/proc/{pid}/{name}") or b"").decode()


def test_the_launch_says_how_the_run_is_held(eval_host: EvalHost) -> None:
    row = runs.launch_answer(eval_host.args(SLEEP), Line())["run"]
    assert row["state"] == "running" and "GPUs hidden" in row["rung"]
