"""`orch status` of a training whose log says odd things."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from test_results import answer, orch


def project(folder: Path, line: str) -> Path:
    """A local training box whose log repeats one line; the state folder."""
    checkpoints, log = folder / "checkpoints", folder / "train.log"
    checkpoints.mkdir()
    log.write_text(line * 20)
    host = f"{{roles: [train], transport: local, root: {folder}, python: {sys.executable}}}"
    run = f"{{host: box, checkpoints: {checkpoints}, log: {log}, process: {{pid: {os.getpid()}}}}}"
    (folder / "hosts.yaml").write_text(f"hosts: {{box: {host}}}\nruns: {{r: {run}}}\n")
    return folder / "state"


@pytest.mark.parametrize(
    ("line", "said", "loss"),
    [
        ("step 100 epoch 1.04 loss nan 19.5K tok/s\n", "step 100  epoch 1.04  loss nan  19.5K tok/s", "nan"),
        ("step 100 loss inf\n", "step 100  loss inf", "inf"),
        ("step 100 loss 2.5\n", "step 100  loss 2.5", 2.5),
        ("{'loss': nan, 'learning_rate': 5e-5, 'epoch': 0.5}\n", "epoch 0.5  loss nan", "nan"),
    ],
)
def test_a_training_that_has_diverged_is_shown_as_such(tmp_path: Path, line: str, said: str, loss: float | str) -> None:
    home = project(tmp_path, line)
    typed = orch(home, "status")
    assert typed.returncode == 0 and said in typed.stdout, typed.stdout + typed.stderr
    assert answer(home, "status")["runs"][0]["progress"]["loss"] == loss
