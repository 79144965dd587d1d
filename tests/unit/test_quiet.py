"""The agent makes itself the least of its host's worries; tried in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from observing import ROOT, SLEEP, running

from remote_payload.agent import quiet

REPORT = """
import json, os, sys, threading
from remote_payload.agent import quiet
threading.Thread(target=threading.Event().wait, daemon=True).start()
notes = quiet.be_quiet()
threads = [int(name) for name in os.listdir("/proc/self/task")]
import ctypes
def text(path):
    try:
        return open(path).read().strip()
    except OSError:
        return None
print(json.dumps({
    "notes": notes,
    "nice": [os.getpriority(os.PRIO_PROCESS, thread) for thread in threads],
    "io": [ctypes.CDLL(None).syscall(252, 1, thread) >> 13 for thread in threads],
    "autogroup": text("/proc/self/autogroup"),
    "oom": text("/proc/self/oom_score_adj"),
    "leads": os.getsid(0) == os.getpid(),
}))
"""


def report(**options):
    done = subprocess.run(
        [sys.executable, "-c", REPORT],
        stdin=subprocess.PIPE,
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
        **options,
    )
    return json.loads(done.stdout)


def autogroup_of(pid: int | str) -> str | None:
    try:
        with open(f"/proc/{pid}/autogroup") as file:
            return file.read().strip()
    except OSError:
        return None


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the test asks by x86-64's system call number")
def test_every_thread_is_lowered_and_the_session_is_its_own():
    told = report()
    assert told["notes"] == []
    assert set(told["nice"]) == {19} and len(told["nice"]) == 2
    assert set(told["io"]) == {3}
    assert told["oom"] == "1000"
    if told["autogroup"] is not None:
        assert told["leads"]
        assert told["autogroup"].endswith("nice 19")


def test_somebody_elses_session_is_left_alone():
    before = autogroup_of("self")
    assert report()["leads"] or before is None
    assert autogroup_of("self") == before
    told = report(process_group=0) if sys.version_info >= (3, 11) else report(preexec_fn=os.setpgrp)
    if before is not None:
        assert any("session" in note for note in told["notes"])
        assert autogroup_of("self") == before


def test_the_trainings_cores_are_left_to_it():
    everywhere = sorted(os.sched_getaffinity(0))
    if len(everywhere) < 2:
        pytest.skip("one core only")
    with running(sys.executable, "-c", SLEEP) as child:
        assert quiet.cores_of([child.pid]) == set() or len(everywhere) < os.cpu_count()
        os.sched_setaffinity(child.pid, {everywhere[0]})
        assert quiet.cores_of([child.pid]) == {everywhere[0]}
    code = (
        "import os; from remote_payload.agent import quiet; print(quiet.avoid({%d}), sorted(os.sched_getaffinity(0)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code % everywhere[0]], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"[] {everywhere[1:]}\n"
    assert "every core" in quiet.avoid(everywhere)[0]
    assert sorted(os.sched_getaffinity(0)) == everywhere


def test_an_evaluations_own_questions_are_as_quiet_where_a_training_lives():
    code = (
        "import os, sys; from remote_payload.agent import main\n"
        "main.QUESTIONS = {'q': ('x', 'y', False)}\n"
        "main._answer({'role': 'eval', 'beside': %r, 'question': 'q', 'args': {}}, None)\n"
        "print(os.getpriority(os.PRIO_PROCESS, 0), open('/proc/self/oom_score_adj').read().strip())"
    )
    for beside, nice in ((True, "19"), (False, str(os.getpriority(os.PRIO_PROCESS, 0)))):
        done = subprocess.run(
            [sys.executable, "-c", code % beside], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == [nice, "0"]
