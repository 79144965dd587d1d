"""How a training ended: from its exit status, or from what its log says last."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from observing import READY, running, wait_for_state

from remote_payload.agent import last_words

STEP = "step 5296 epoch 1.04 loss 2.31 19.5K tok/s"
LOGS = {
    "trainer of transformers": (
        ["{'loss': 2.31, 'epoch': 2.99}", "{'train_runtime': 61.2, 'train_loss': 2.4, 'epoch': 3.0}", "100%|##| 9/9"],
        "finished",
    ),
    "lightning": ([STEP, "`Trainer.fit` stopped: `max_steps=1000` reached."], "finished"),
    "torchtitan": ([STEP, "[rank0]:2026-11-30 12:00:00,1 - root - INFO - Training completed"], "finished"),
    "own trainer": ([STEP, "training finished after step 5296"], "finished"),
    "own trainer, asked to": ([STEP, "training stopped after step 5296: asked to"], "stopped"),
    "python": (
        [STEP, "Traceback (most recent call last):", '  File "t.py", line 1, in f', "ValueError: no"],
        "crashed",
    ),
    "memory of a GPU": ([STEP, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"], "crashed"),
    "torchrun, a failed rank": (
        [STEP, "Traceback (most recent call last):", "ChildFailedError:", "  exitcode  : 1 (pid: 413)"],
        "crashed",
    ),
    "torchrun, a killed rank": (
        [
            STEP,
            "ChildFailedError:",
            "  exitcode  : -9 (pid: 413)",
            "  traceback : Signal 9 (SIGKILL) received by PID 413",
        ],
        "killed",
    ),
    "a shell": ([STEP, "run.sh: line 3:   413 Killed                  python train.py"], "killed"),
    "slurm": (
        [STEP, "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-30T12:00:00 DUE TO TIME LIMIT ***"],
        "killed",
    ),
    "nothing but steps": ([STEP] * 5, None),
    "went on after an error": (["RuntimeError: lost a worker, restarting", STEP], None),
    "an error far above": (["ValueError: no", *["a line"] * last_words.LINES], None),
    "empty": ([], None),
}


@pytest.mark.parametrize("name", LOGS)
def test_the_end_of_a_log_tells_how_training_ended(name: str) -> None:
    lines, how = LOGS[name]
    assert last_words.of_lines(lines)["how"] == how


@given(st.lists(st.text(max_size=80), max_size=30))
def test_any_log_is_read_without_a_surprise(lines: list[str]) -> None:
    assert last_words.of_lines(lines)["how"] in {None, "finished", "crashed", "killed", "stopped"}


@pytest.mark.parametrize(
    ("code", "how", "why"),
    [
        ("", "finished", "exit code 0"),
        ("sys.exit(3)", "crashed", "exit code 3"),
        ("import os; os.kill(os.getpid(), 15)", "killed", "signal 15 (SIGTERM)"),
    ],
)
def test_a_zombie_tells_its_exit_status(tmp_path, code: str, how: str, why: str) -> None:
    log = tmp_path / "log"
    log.write_text("training finished after step 3\n")
    with running(sys.executable, "-c", READY + code) as child:
        wait_for_state(child.pid, "Z")
        assert last_words.ending(str(log), child.pid) == {"how": how, "why": why}


def test_without_a_word_nobody_guesses(tmp_path) -> None:
    assert last_words.ending(str(tmp_path / "none")) == {"how": None, "why": None}
    assert last_words.ending(None) == {"how": None, "why": None}
    with running(sys.executable, "-c", READY + "time.sleep(60)") as child:
        assert last_words.exit_status(child.pid) is None, "it lives"
