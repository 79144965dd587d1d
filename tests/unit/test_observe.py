"""One question, one answer: all that status needs to know of a box."""

from __future__ import annotations

import json
import subprocess
import sys
import time

from observing import ROOT, Spawner, program, running

from remote_payload.agent import questions_observe
from remote_payload.agent.questions_observe import observe_answer, together

NOTHING = {"process": None, "log": None, "progress": None, "source": None, "checkpoints": None}


TIMED = """
import json, subprocess, sys, time
asked = json.load(sys.stdin)
class Talk:
    spawn = staticmethod(subprocess.Popen)
began = time.monotonic()
from remote_payload.agent.questions_observe import observe_answer
told = observe_answer(asked, Talk())
seconds = time.monotonic() - began
assert told["runs"]["r"]["process"]["state"] == "running", told
print(seconds)
"""


def timed(asked) -> str:
    """Seconds of an answer in a fresh python, imports included."""
    return subprocess.run(
        [sys.executable, "-c", TIMED], input=json.dumps(asked), cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def question(**changes):
    return {"disk_path": "/", "runs": [], "gpus": False, "sample": False, "eval": None, **changes}


def test_a_host_without_runs_tells_its_facts():
    told = observe_answer(question(gpus=True), Spawner())
    assert told["runs"] == {} and told["eval"] is None
    assert told["host"]["cpus"] >= 1
    assert told["host"]["gpus"] or told["host"]["gpu_note"]
    json.dumps(told, allow_nan=False)


def test_a_run_is_told_whole(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("step 5296 epoch 1.04 loss 2.31 19.5K tok/s\n")
    pidfile = tmp_path / "pid"
    with running(sys.executable, program(tmp_path, "train_tiny_20.py")) as child:
        pidfile.write_text(str(child.pid))
        run = {**NOTHING, "name": "dflash", "process": {"pidfile": str(pidfile)}, "log": str(log), "source": "/proc"}
        told = observe_answer(question(runs=[run], sample=True), Spawner())["runs"]["dflash"]
    assert (told["process"]["state"], told["process"]["pid"]) == ("running", child.pid)
    assert told["progress"]["step"] == told["sample"]["step"] == 5296
    assert told["sample"]["identity"] == told["process"]["identity"]
    assert told["source"]["error"] == "/proc: no git repository"
    assert told["checkpoints"] is None


def test_a_part_that_fails_leaves_the_others_alone(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("step 7 loss 1.0\n")
    good = {**NOTHING, "name": "good", "log": str(log)}
    bad = {**NOTHING, "name": "bad", "log": str(tmp_path / "none"), "process": {}}
    told = observe_answer(question(disk_path="/", runs=[good, bad]), Spawner())["runs"]
    assert told["good"]["progress"]["step"] == 7
    assert "No such file" in told["bad"]["progress"]["error"]
    assert "match, pid or pidfile" in told["bad"]["process"]["error"]


def test_a_part_that_hangs_costs_only_itself(monkeypatch):
    monkeypatch.setattr(questions_observe, "PATIENCE_S", 0.2)
    began = time.monotonic()
    told = together({"fast": lambda: 1, "slow": lambda: time.sleep(2), "broken": lambda: 1 // 0})
    assert time.monotonic() - began < 1
    assert told["fast"] == 1
    assert "no answer" in told["slow"]["error"]
    assert "ZeroDivisionError" in told["broken"]["error"]


def test_the_whole_answer_takes_under_a_tenth_of_a_second(tmp_path):
    """Beside the start of python; the best of three, since the machine may be busy."""
    log = tmp_path / "train.log"
    log.write_text("step 5296 epoch 1.04 loss 2.31 19.5K tok/s\n" * 10_000)
    with running(sys.executable, program(tmp_path, "train_tiny_21.py")):
        run = {
            **NOTHING,
            "name": "r",
            "process": {"match": "train_tiny_21.py"},
            "log": str(log),
            "source": str(tmp_path),
        }
        seconds = [float(timed(question(runs=[run], sample=True))) for _ in range(3)]
    assert min(seconds) < 0.1
