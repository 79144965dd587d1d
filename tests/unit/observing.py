"""Small real things for the tests of what the agent observes: child processes, and the agent's code in a process of its
own (where it runs on a host: the test itself is its ancestor, and so is never taken for a training)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
READY = "import sys, time; print('ready', flush=True)\n"
SLEEP = READY + "time.sleep(120)\n"

_ASK = """
import json, sys
module, function, arguments = json.load(sys.stdin)
loaded = __import__("remote_payload.agent." + module, fromlist=[function])
json.dump(getattr(loaded, function)(*arguments), sys.stdout)
"""


class Spawner:
    """The part of a conversation that starts children; they are ended with it."""

    def __init__(self) -> None:
        self.children: list[subprocess.Popen[Any]] = []

    def spawn(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        self.children.append(subprocess.Popen(argv, **options))
        return self.children[-1]


def ask(module: str, function: str, *arguments: Any, prefix: Sequence[str] = (), root: Path = ROOT) -> Any:
    """The function's answer, computed in a python of its own."""
    done = subprocess.run(
        [*prefix, sys.executable, "-c", _ASK],
        input=json.dumps([module, function, arguments]),
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(root)},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def find(rule: dict[str, Any], **options: Any) -> dict[str, Any]:
    return ask("training", "find", rule, **options)


@contextmanager
def running(*argv: str | Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A child that has said `ready`; killed at the end."""
    child = subprocess.Popen([str(word) for word in argv], stdout=subprocess.PIPE, text=True, **options)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield child
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def program(folder: Path, name: str, text: str = SLEEP) -> Path:
    """A Python file in the folder."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def wait_for_state(pid: int, letter: str) -> None:
    for _ in range(500):
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == letter:
            return
        time.sleep(0.01)
    raise AssertionError(f"process {pid} did not become {letter}")
