"""The small real world of the story tests: a training box with a live training, an evaluation box, a laptop's project.

`World` holds what is made once (a trained target, cached hidden states, a baseline); `Stage` is one pair of boxes with
a project that commands are typed in. Boxes are folders reached by `transport: local`, or real OpenSSH hosts.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAYLOAD = ROOT / "remote_payload"
HARNESS = PAYLOAD / "harness"
TRAINER = PAYLOAD / "trainer" / "train_dflash_pipeline.py"
QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "OMP_NUM_THREADS": "1"}
NEW_TOKENS = 32

JOB = """\
harness: {{local: harness, remote: {remote}}}
data: {{cache: {remote}/cached_hidden_states, baseline: {remote}/baseline}}
checkpoint: {{ship: model}}
command: ["{{python}}", eval_drafter.py, --drafter, "{{checkpoint}}", --cache, "{{data.cache}}",
          --baseline, "{{data.baseline}}", --budgets, "16,64", --out, "{{result}}"]
env: {{HF_HUB_OFFLINE: "1"}}
result: {{file: eval_results.json, headline: acceptance_length.walk_macro, better: higher,
         items: prompts, item_id: id, item_value: acceptance_length}}
limits: {{threads: 1}}
"""


def run_python(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run this interpreter to a good end."""
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, **QUIET, "CUDA_VISIBLE_DEVICES": ""},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def copy_harness(to: Path) -> None:
    shutil.copytree(HARNESS, to, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)


@dataclass(frozen=True)
class World:
    """Made once: `checkpoints` (target/, drafter.json, step_40 to step_120) and `data` (hidden states, baseline)."""

    folder: Path

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @classmethod
    def make(cls, folder: Path) -> World:
        """A real training of 120 steps, and the real extraction of hidden states: about half a minute."""
        world = cls(folder)
        run_python(str(TRAINER), "--out", str(world.checkpoints), "--steps", "120", "--save-every", "40")
        prompts = folder / "prompts.jsonl"
        run_python(str(TRAINER), "--write-prompts", str(prompts), "--n", "6")
        run_python(
            str(HARNESS / "extract_hidden_states.py"),
            *("--target", str(world.checkpoints / "target"), "--prompts", str(prompts)),
            *("--drafter", str(world.checkpoints / "drafter.json"), "--max-new-tokens", str(NEW_TOKENS)),
            *("--out", str(world.data / "cached_hidden_states")),
        )
        shutil.copytree(world.checkpoints / "step_40", world.data / "baseline")
        return world


@dataclass
class Stage:
    """Two boxes and a project. `train` and `evaluate` are the boxes' home folders as this machine sees them."""

    world: World
    folder: Path
    hosts_yaml: str
    train: Path
    evaluate: Path
    train_inside: str
    """the training box's home as the box itself names it"""
    evaluate_inside: str
    start: Callable[[list[str]], None]
    """runs a command on the training box in the background"""
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def project(self) -> Path:
        return self.folder / "project"

    @property
    def remote_harness(self) -> Path:
        return self.evaluate / "eval"

    def furnish(self) -> None:
        """Checkpoints on one box; data and an older harness on the other; the project on the laptop."""
        shutil.copytree(self.world.checkpoints, self.train / "checkpoints")
        copy_harness(self.remote_harness)
        shutil.copytree(self.world.data, self.remote_harness, dirs_exist_ok=True)
        old = self.remote_harness / "eval_drafter.py"
        old.write_text(old.read_text() + "\n# edited on the box\n")
        (self.project / "jobs").mkdir(parents=True)
        copy_harness(self.project / "harness")
        (self.project / "hosts.yaml").write_text(self.hosts_yaml)
        (self.project / "jobs" / "eval-dflash.yaml").write_text(JOB.format(remote=f"{self.evaluate_inside}/eval"))

    def start_training(self, *more: str) -> int:
        """The real trainer as the live run on the training box; returns its pid there once it has stepped."""
        pidfile, log = self.train / "train.pid", self.train / "train.log"
        home = self.train_inside
        words = [
            sys.executable,
            str(TRAINER),
            "--out",
            f"{home}/live",
            "--log",
            f"{home}/train.log",
            "--log-every",
            "2",
        ]
        words += ["--pidfile", f"{home}/train.pid", "--pace", "10", "--texts", "64", "--save-every", "100000"]
        shutil.copytree(self.world.checkpoints / "target", self.train / "live" / "target")
        self.start([*words, *more])
        wait_until(lambda: log.exists() and "step" in log.read_text(), 60)
        return int(pidfile.read_text())

    def orch(self, *words: str, timeout: float = 120, **environment: str) -> subprocess.CompletedProcess[str]:
        """Type an orch command in the project."""
        return subprocess.run(
            [sys.executable, "-c", "from orchestrator.cli import main; main()", *words],
            cwd=self.project,
            env=self.variables(**environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def variables(self, **more: str) -> dict[str, str]:
        """The environment of a command typed on the laptop."""
        own = {"ORCH_HOME": str(self.folder / "state"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        return {**os.environ, **own, **self.environment, **more}

    def json(self, *words: str, code: int = 0) -> dict[str, Any]:
        """The document of a command that ends with this exit code."""
        done = self.orch(*words, "--json")
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        document = json.loads(done.stdout)
        assert isinstance(document, dict)
        return document


def local_stage(world: World, folder: Path, started: list[subprocess.Popen[bytes]]) -> Stage:
    """Two folders of this machine as boxes."""
    train, evaluate = folder / "train-box", folder / "eval-box"
    for home in (train, evaluate):
        home.mkdir()
    hosts = f"""\
hosts:
  train-box: {{roles: [train], transport: local, root: {train}, python: {sys.executable}}}
  eval-box: {{roles: [eval], transport: local, root: {evaluate}, python: {sys.executable}, workdir: ~/orch}}
timeouts: {{poll: 300ms}}
runs:
  dflash: {{host: train-box, checkpoints: {train}/checkpoints, log: {train}/train.log, job: eval-dflash,
           process: {{pidfile: {train}/train.pid}}}}
"""

    def start(words: list[str]) -> None:
        started.append(
            subprocess.Popen(
                words,
                cwd=train,
                env={**os.environ, **QUIET},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )

    stage = Stage(
        world=world,
        folder=folder,
        hosts_yaml=hosts,
        train=train,
        evaluate=evaluate,
        train_inside=str(train),
        evaluate_inside=str(evaluate),
        start=start,
    )
    stage.furnish()
    return stage


def end(started: list[subprocess.Popen[bytes]]) -> None:
    """End what `local_stage` started, by pid."""
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_until(happened: Callable[[], bool], seconds: float) -> None:
    """Poll for something that is expected; fails when it does not happen in time."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, f"did not happen within {seconds} s"
        time.sleep(0.1)


def by_hand(stage: Stage, checkpoint: Path, out: Path) -> dict[str, Any]:
    """The result of typing the harness' own command on the same files, without orch."""
    data = stage.remote_harness
    run_python(
        "eval_drafter.py",
        *("--drafter", str(checkpoint), "--cache", str(data / "cached_hidden_states")),
        *("--baseline", str(data / "baseline"), "--budgets", "16,64", "--out", str(out)),
        cwd=stage.project / "harness",
    )
    document = json.loads(out.read_text())
    assert isinstance(document, dict)
    return document
