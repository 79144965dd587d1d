"""A project whose evaluation is a few lines of Python: stories about runs, without training anything.

`Small` is a laptop's folder and two boxes: folders of this machine (`local`), or real hosts by their ssh targets.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULT = "import json, sys; json.dump({'score': 1.5}, open(sys.argv[2], 'w'))\n"
COMMAND = [sys.executable, "-c", "from orchestrator.cli import main; main()"]
QUICK = "{poll: 200ms}"


@dataclass
class Small:
    """`train` and `evaluate` are the boxes' home folders as this machine sees them."""

    folder: Path
    train: Path
    evaluate: Path
    hosts: str
    """the lines below `hosts:`"""
    inside: dict[str, str] = field(default_factory=dict)
    """box -> its home as the box itself names it, where it is another"""
    environment: dict[str, str] = field(default_factory=dict)
    timeouts: str = QUICK
    host_process: Path | None = None
    """a file with the pid of a process of the evaluation box, where that is a machine of its own"""

    def furnish(self, code: str = RESULT, steps: tuple[int, ...] = (7,)) -> None:
        """Checkpoints on one box, the project on the laptop; `code` is what the evaluation runs."""
        import torch

        for step in steps:
            file = self.train / "small" / f"step_{step}" / "checkpoint.pt"
            file.parent.mkdir(parents=True)
            torch.save({"model": {"w": torch.full((100_000,), float(step))}, "step": step}, file)
            os.utime(file, (step, step))
        for name in ("harness", "jobs"):
            (self.folder / name).mkdir(parents=True)
        self.code(code)
        root = self.inside.get("train", str(self.train))
        self.configure(f"hosts:\n{self.hosts}runs: {{r: {{host: train, checkpoints: {root}/small, job: j}}}}\n")
        remote = self.inside.get("evaluate", str(self.evaluate))
        (self.folder / "jobs" / "j.yaml").write_text(
            f"harness: {{local: harness, remote: {remote}/eval}}\n"
            'command: ["{python}", ev.py, "{checkpoint}", "{result}"]\n'
            "result: {file: r.json, headline: score}\n"
        )

    def configure(self, text: str) -> None:
        (self.folder / "hosts.yaml").write_text(f"{text}timeouts: {self.timeouts}\n")

    def code(self, code: str) -> None:
        """What the evaluation runs from now on."""
        (self.folder / "harness" / "ev.py").write_text(code)

    # -- commands -----------------------------------------------------------------------------------------------

    def variables(self, **more: str) -> dict[str, str]:
        own = {"ORCH_HOME": str(self.folder / "state"), "PYTHONPATH": str(ROOT)}
        return {**os.environ, **own, **self.environment, **more}

    def start(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        """Type a command and go on meanwhile."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*COMMAND, *words],
            cwd=self.folder,
            env=self.variables(**variables),
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            text=True,
        )

    def orch(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        typed = self.start(*words, **variables)
        out, err = typed.communicate(timeout=120)
        return subprocess.CompletedProcess(words, typed.returncode, out, err)

    def json(self, *words: str, code: int = 0, **variables: str) -> dict[str, Any]:
        """The document of a command that ends with this exit code."""
        done = self.orch(*words, "--json", **variables)
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        document = json.loads(done.stdout.splitlines()[-1])
        assert isinstance(document, dict)
        return document

    # -- what lies on the evaluation box ------------------------------------------------------------------------

    @property
    def runs(self) -> Path:
        return self.evaluate / "orch" / "runs"

    def ids(self) -> list[str]:
        """Run folders, oldest first."""
        found = [path for path in self.runs.glob("*") if not path.name.startswith(".")]
        return [path.name for path in sorted(found, key=lambda path: path.stat().st_ctime_ns)]

    def file(self, run_id: str, name: str) -> dict[str, Any]:
        """A small file of a run; {} where it is not there yet."""
        try:
            document = json.loads((self.runs / run_id / name).read_text())
        except FileNotFoundError:
            return {}
        assert isinstance(document, dict)
        return document

    def state(self, run_id: str) -> str:
        rows = {row["id"]: row for row in self.json("runs")["runs"]}
        return str(rows[run_id]["state"])

    def detach(self, *words: str) -> str:
        """Start an evaluation and come back; its id. One that fails at once may have been seen to."""
        done = self.orch("eval-latest", "--yes", "--detach", *words, "--json")
        assert done.returncode in (0, 8), done.stdout + done.stderr
        return str(json.loads(done.stdout)["run"]["id"])

    def wait_for_end(self, run_id: str, seconds: float = 60) -> dict[str, Any]:
        wait_until(lambda: self.file(run_id, "exit.json"), seconds)
        return self.file(run_id, "exit.json")

    def processes(self, run_id: str) -> list[int]:
        """Living processes of the box that carry the run's mark."""
        own = Path("/proc", self.host_process.read_text().strip() if self.host_process else "self", "ns", "pid")
        namespace = os.readlink(own)
        mark = f"ORCH_RUN_FOLDER={self.inside.get('evaluate', self.evaluate)}/orch/runs/{run_id}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                mine = os.readlink(entry / "ns" / "pid") == namespace
                if mine and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def close(self) -> None:
        """End what the runs have left, by pid."""
        for run_id in self.ids():
            for pid in self.processes(run_id):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue


def local(folder: Path) -> Small:
    """Two folders of this machine as boxes."""
    train, evaluate = folder / "train", folder / "evaluate"
    train.mkdir()
    evaluate.mkdir()
    hosts = "".join(
        f"  {name}: {{roles: [{role}], transport: local, root: {home}, python: {sys.executable}{more}}}\n"
        for name, role, home, more in (("train", "train", train, ""), ("box", "eval", evaluate, ", workdir: ~/orch"))
    )
    return Small(folder=folder / "laptop", train=train, evaluate=evaluate, hosts=hosts)


def wait_until(happened: Callable[[], object], seconds: float = 60.0) -> None:
    """Poll for something that is expected."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, f"did not happen within {seconds} s"
        time.sleep(0.05)


def agents(parent: int) -> list[int]:
    """The agents that a command has on this machine."""
    try:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        return [int(pid) for pid in children if b"-I" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]
    except OSError:
        return []


def lives(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
