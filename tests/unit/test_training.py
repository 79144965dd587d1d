"""Which process is the training: real processes, seen from a process of the agent's own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from observing import READY, ROOT, SLEEP, find, program, running, wait_for_state

PYTHON = sys.executable
LAUNCHER = """
import os, subprocess, sys, time
ranks = []
for rank in range(2):
    settings = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="h", MASTER_PORT="1")
    ranks.append(subprocess.Popen([sys.executable, "-u", *sys.argv[2:]], env=settings, stdout=subprocess.PIPE))
for child in ranks:
    child.stdout.readline()
print("ready", flush=True)
try:
    sys.stdin.read()
finally:
    for child in ranks:
        child.kill()
"""
WITH_WORKERS = """
import os, sys, time
pids = []
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        import ctypes
        ctypes.CDLL(None).prctl(1, 9)
        time.sleep(120)
    pids.append(pid)
print("ready", flush=True)
time.sleep(120)
"""


def test_the_running_training_is_named_with_all_that_tells_it(tmp_path):
    script = program(tmp_path, "train_tiny_1.py")
    with running(PYTHON, script, "--lr", "1e-4") as child:
        found = find({"match": "train_tiny_1.py"})
    assert (found["state"], found["pid"], found["ranks"], found["matches"]) == ("running", child.pid, [child.pid], [])
    assert found["command"] == f"{PYTHON} {script} --lr 1e-4"
    assert set(found["identity"]) == {"incarnation", "pid", "start_ticks"}
    assert found["started_at"].endswith("Z") and found["user"]


def test_a_stopped_training_is_stopped(tmp_path):
    with running(PYTHON, program(tmp_path, "train_tiny_2.py")) as child:
        child.send_signal(signal.SIGSTOP)
        wait_for_state(child.pid, "T")
        assert find({"match": "train_tiny_2.py"})["state"] == "stopped"
        assert find({"pid": child.pid})["state"] == "stopped"


def test_a_zombie_is_a_zombie_by_pid_and_by_its_own_name(tmp_path):
    own_name = tmp_path / "trainer_z"
    own_name.symlink_to(PYTHON)
    with running(own_name, "-c", READY) as child:
        wait_for_state(child.pid, "Z")
        assert find({"pid": child.pid})["state"] == "zombie"
        found = find({"match": "trainer_z"})
        assert (found["state"], found["pid"], found["command"]) == ("zombie", child.pid, "trainer_z")


def test_nothing_there_is_absent(tmp_path):
    found = find({"match": "train_that_never_was.py"})
    assert (found["state"], found["pid"], found["identity"], found["ranks"]) == ("absent", None, None, [])
    assert "train_that_never_was.py" in found["reason"]
    assert find({"pid": 2**22 + 1})["state"] == "absent"


def test_two_unrelated_trainings_are_ambiguous_and_listed(tmp_path):
    one, two = program(tmp_path, "a/train_tiny_3.py"), program(tmp_path, "b/train_tiny_3.py")
    with running(PYTHON, one) as first, running(PYTHON, two) as second:
        found = find({"match": "train_tiny_3.py"})
        assert (found["state"], found["pid"]) == ("ambiguous", None)
        assert {match["pid"] for match in found["matches"]} == {first.pid, second.pid}
        assert find({"match": "b/train_tiny_3.py"})["pid"] == second.pid


def test_what_only_mentions_the_training_is_passed_over_and_said(tmp_path):
    script = program(tmp_path, "train_tiny_4.py")
    log = tmp_path / "train_tiny_4.py.log"
    log.touch()
    plot = program(tmp_path, "plot.py")
    shell = ["sh", "-c", "echo ready; sleep 5 & wait", "train_tiny_4.py"]
    with subprocess.Popen(["tail", "-f", log], stdout=subprocess.DEVNULL) as tail:
        try:
            with running(PYTHON, plot, "train_tiny_4.py"), running(*shell, stdin=subprocess.DEVNULL):
                found = find({"match": "train_tiny_4.py"})
                assert found["state"] == "absent"
                assert f"tail ({tail.pid})" in found["reason"]
                with running(PYTHON, script) as child:
                    assert find({"match": "train_tiny_4.py"})["pid"] == child.pid
        finally:
            tail.kill()


def test_a_longer_name_does_not_hide_the_exact_one(tmp_path):
    exact, longer = program(tmp_path, "train_tiny_5.py"), program(tmp_path, "pretrain_tiny_5.py")
    with running(PYTHON, longer) as other:
        assert find({"match": "train_tiny_5.py"})["pid"] == other.pid
        with running(PYTHON, exact) as child:
            assert find({"match": "train_tiny_5.py"})["pid"] == child.pid


def test_an_argument_names_a_training_where_the_rule_is_no_script(tmp_path):
    with running(PYTHON, program(tmp_path, "main.py"), "--config", "tiny_6.yaml") as child:
        assert find({"match": "tiny_6.yaml"})["pid"] == child.pid
        assert find({"match": "--config tiny_6"})["pid"] == child.pid


def test_a_launcher_and_its_ranks_are_one_training_led_by_the_launcher(tmp_path):
    launcher, script = program(tmp_path, "torchrun", LAUNCHER), program(tmp_path, "train_tiny_7.py")
    with running(PYTHON, launcher, "--nproc=2", script, stdin=subprocess.PIPE) as child:
        found = find({"match": "train_tiny_7.py"})
        assert (found["state"], found["pid"]) == ("running", child.pid)
        assert len(found["ranks"]) == 2 and child.pid not in found["ranks"]
        os.kill(found["ranks"][1], signal.SIGSTOP)
        wait_for_state(found["ranks"][1], "T")
        assert find({"pid": child.pid})["reason"] == f"rank process {found['ranks'][1]} is stopped"
        child.stdin.close()
        child.wait()


@pytest.mark.parametrize("words", [["accelerate", "launch"], ["deepspeed"], ["torchrun", "--nproc_per_node=2"]])
def test_each_common_launcher_leads_its_ranks_also_through_a_second_one(tmp_path, words):
    """deepspeed starts `-m deepspeed.launcher.launch`, which starts the ranks; the others start them themselves."""
    name = f"train_tiny_{words[0]}.py"
    script = program(tmp_path, name)
    inner = program(tmp_path, "deepspeed_pkg/deepspeed/launcher/launch.py", LAUNCHER)
    for folder in (inner.parent, inner.parent.parent):
        (folder / "__init__.py").touch()
    code = LAUNCHER
    if words[0] == "deepspeed":
        code = (
            "import os, subprocess, sys\n"
            f"settings = dict(os.environ, PYTHONPATH={str(inner.parents[2])!r})\n"
            "argv = [sys.executable, '-u', '-m', 'deepspeed.launcher.launch', '--world_info=x', *sys.argv[1:]]\n"
            "sys.exit(subprocess.call(argv, env=settings))\n"
        )
    launcher = program(tmp_path, f"bin/{words[0]}", code)
    with running(PYTHON, launcher, *words[1:], script, stdin=subprocess.PIPE) as child:
        found = find({"match": name})
        assert (found["state"], found["pid"]) == ("running", child.pid)
        assert len(found["ranks"]) == 2 and child.pid not in found["ranks"]
        child.stdin.close()
        child.wait()


def test_ranks_without_a_matching_launcher_are_led_by_the_lowest_rank(tmp_path):
    launcher, script = program(tmp_path, "start_all.py", LAUNCHER), program(tmp_path, "train_tiny_8.py")
    with running(PYTHON, launcher, "x", script, stdin=subprocess.PIPE) as child:
        found = find({"match": f"-u {script}"})
        assert found["state"] == "running"
        assert found["pid"] == min(found["ranks"]) and len(found["ranks"]) == 2
        child.stdin.close()
        child.wait()


def test_data_loader_workers_are_not_ranks(tmp_path):
    with running(PYTHON, program(tmp_path, "train_tiny_9.py", WITH_WORKERS)) as child:
        found = find({"match": "train_tiny_9.py"})
        assert (found["state"], found["pid"], found["ranks"]) == ("running", child.pid, [child.pid])


def test_an_evaluation_of_orch_is_never_the_training(tmp_path):
    script = program(tmp_path, "train_tiny_10.py")
    with running(PYTHON, script, env={**os.environ, "ORCH_RUN_ID": "r1"}):
        assert find({"match": "train_tiny_10.py"})["state"] == "absent"


def test_a_pidfile_names_its_process_and_a_recycled_number_is_said(tmp_path):
    pidfile = tmp_path / "train.pid"
    with running(PYTHON, "-c", SLEEP) as child:
        pidfile.write_text(f"{child.pid}\n")
        assert find({"pidfile": str(pidfile)})["pid"] == child.pid
        hour_ago = time.time() - 3600
        os.utime(pidfile, (hour_ago, hour_ago))
        found = find({"pidfile": str(pidfile)})
        assert (found["state"], found["pid"]) == ("ambiguous", None)
        assert "recycled" in found["reason"]
    assert find({"pidfile": str(tmp_path / "none")})["state"] == "absent"


def test_a_thread_is_no_process(tmp_path):
    code = "import threading, time; threading.Thread(target=time.sleep, args=(120,), daemon=True).start()\n" + SLEEP
    with running(PYTHON, "-c", code) as child:
        thread = max(int(name) for name in os.listdir(f"/proc/{child.pid}/task"))
        assert find({"pid": thread})["state"] == "absent"


def readable_by_all(tmp_path):
    """A copy of the agent's code where another user can read it."""
    for folder in [tmp_path, *tmp_path.parents]:
        if folder == tmp_path or folder.name.startswith(("pytest-", "popen-")):  # pytest's own, which are private
            folder.chmod(0o755)
    return shutil.copytree(ROOT / "remote_payload", tmp_path / "code" / "remote_payload").parent


@pytest.mark.skipif(os.geteuid() != 0, reason="another user needs root")
def test_another_users_training_is_found_where_proc_shows_it(tmp_path):
    nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    with running(PYTHON, program(tmp_path, "train_tiny_12.py")) as child:
        found = find({"match": "train_tiny_12.py"}, prefix=nobody, root=readable_by_all(tmp_path))
        assert (found["state"], found["pid"], found["user"], found["ranks"]) == (
            "running",
            child.pid,
            "root",
            [child.pid],
        )


@pytest.mark.skipif(os.geteuid() != 0, reason="another user and a /proc of its own need root")
@pytest.mark.parametrize("hidepid", ["1", "2"])
def test_what_proc_hides_is_said_not_guessed(tmp_path, hidepid):
    shown = readable_by_all(tmp_path)
    script, pidfile, ready = program(tmp_path, "train_tiny_11.py"), tmp_path / "pid", tmp_path / "ready"
    steps = (
        f"mount -t proc -o hidepid={hidepid} proc /proc; {PYTHON} {script} > {ready} & echo $! > {pidfile}; "
        f"while ! [ -s {ready} ]; do sleep 0.05; done; "
        'exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"'
    )
    prefix = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", steps, "sh"]
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no PID namespace or no nobody here")
    found = find({"match": "train_tiny_11.py"}, prefix=prefix, root=shown)
    assert found["state"] == "hidden"
    assert "hidepid" in found["reason"]
    found = find({"pidfile": str(pidfile)}, prefix=prefix, root=shown)
    assert found["state"] == "hidden"
    assert found["pid"] is None
