"""How long the demo waits for its training, and what it says when it gives up."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A demo whose boxes are folders; half a second without a line is too long."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import demo as module

    monkeypatch.setattr(module, "STILL", 0.5)
    (tmp_path / "train-box").mkdir()
    boxes: Any = SimpleNamespace(home=tmp_path.joinpath, config=tmp_path / "ssh_config")
    return module.Demo(tmp_path, boxes)


def test_a_slow_training_is_waited_for_as_long_as_it_moves(demo: Any) -> None:
    def train() -> None:
        for step in range(10):
            (demo.train / "train.log").write_text(f"step {step}\n")
            time.sleep(0.2)
        place = demo.train / "checkpoints" / "step_50" / "checkpoint.pt"
        place.parent.mkdir(parents=True)
        place.touch()
        for step in range(10, 20):
            (demo.train / "train.log").write_text(f"step {step}\n")
            time.sleep(0.2)

    training = threading.Thread(target=train)
    training.start()
    assert demo.wait_for_checkpoint(50).name == "checkpoint.pt"
    training.join()


def test_a_training_that_stands_still_is_given_up_with_how_far_it_came(demo: Any) -> None:
    (demo.train / "train.log").write_text("step 34\nstep 35\n")
    with pytest.raises(SystemExit, match=r"no step 50 after . s; the training came to: step 35"):
        demo.wait_for_checkpoint(50)


def test_what_to_type_by_hand_finds_project_boxes_and_orch(demo: Any) -> None:
    demo.project.mkdir()
    typed = subprocess.run(
        ["bash", "-c", "\n".join(demo.by_hand()).replace("orch status", 'orch --help; env; echo "in $PWD"')],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert typed.returncode == 0 and "eval-latest" in typed.stdout, typed.stderr
    assert f"in {demo.project}" in typed.stdout and f"ORCH_SSH_CONFIG={demo.folder}/ssh_config" in typed.stdout
    assert sys.executable in "\n".join(demo.by_hand())
