"""An evaluation host in a temporary folder: a work folder, a harness, and the agent's side of a conversation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.ssh import bundle
from remote_payload.agent import chunks, manifest, runs, staging
from remote_payload.agent.errors import AgentError

HARNESS = {
    "eval.py": "import json, sys\njson.dump({'score': 1.5}, open(sys.argv[1], 'w'))\nprint('done')\n",
    "lib/util.py": "VALUE = 1\n",
    "run.sh": "#!/bin/sh\nexit 0\n",
}


@dataclass
class Line:
    """What a question gets beside its arguments: the pieces that will come, and all that was said."""

    pieces: list[bytes] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    said: list[dict[str, Any]] = field(default_factory=list)
    bundle: str = field(default_factory=bundle.source)

    def progress(self, message: dict[str, Any]) -> None:
        self.said.append(message)

    def received(self) -> Iterator[bytes]:
        yield from self.pieces

    def message(self) -> dict[str, Any]:
        return self.messages.pop(0)

    def spawn(self, argv: list[str], **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(argv, **options)


def write_files(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if name.endswith(".sh"):
            path.chmod(0o755)
    return root


def shipment(
    workdir: Path, files: dict[str, bytes], identity: str = "abc", size: int = chunks.CHUNK, **meta: Any
) -> tuple[dict[str, Any], Line]:
    """The question `receive`, and a controller's side of the conversation that sends all of it in one round."""
    listed = [{"path": path, "size": len(data)} for path, data in files.items()]
    cut = chunks.cut(listed, size)
    frames, digests = [], []
    for chunk in cut:
        data = files[chunk.path][chunk.at : chunk.at + chunk.size]
        before, behind = chunks.frame(chunk.number, [memoryview(data)])
        frames.append(before + data + behind)
        digests.append(behind)
    sent = {"chunks": chunks.to_ranges(range(len(cut))), "tree": chunks.tree(digests)}
    plan = chunks.plan_digest(listed, size, b"", identity)
    args = {"workdir": str(workdir), "identity": identity, "files": listed, "chunk": size, "plan": plan}
    args["meta"] = {"step": 4000, **meta}
    return args, Line(frames, [{"round": "relay"}, {"sent": sent}])


def stage(workdir: Path, identity: str = "abc", content: bytes = b"weights", **meta: Any) -> dict[str, Any]:
    """Receive a one-file checkpoint as a controller would send it."""
    return staging.receive_answer(*shipment(workdir, {"model.safetensors": content}, identity, **meta))


@dataclass
class EvalHost:
    """A work folder with a staged checkpoint and a harness folder."""

    root: Path

    @property
    def workdir(self) -> Path:
        return self.root / "orch"

    @property
    def remote(self) -> Path:
        return self.root / "eval"

    def args(self, command: list[str], key: str = "key-1", **changes: Any) -> dict[str, Any]:
        files = manifest.build(str(self.remote))
        spec = {
            "job": "eval-dflash",
            "run": "dflash",
            "step": 4000,
            "checkpoint": "abc",
            "harness": {"remote": str(self.remote), "digest": manifest.digest(files), "files": files},
            "digests": {"checkpoint": "abc", "harness": manifest.digest(files), "job": "j", "data": "d"},
            "command": command,
            "python": sys.executable,
            "env": {},
            "limits": {},
            "result": "eval_results.json",
            **changes,
        }
        return {"workdir": str(self.workdir), "key": key, "id": "eval-4000", "spec": spec, "secrets": {}}

    def launch(self, command: list[str], key: str = "key-1", **changes: Any) -> dict[str, Any]:
        return runs.launch_answer(self.args(command, key, **changes), Line())

    def row(self, run_id: str) -> dict[str, Any]:
        (row,) = [row for row in runs.list_runs(str(self.workdir)) if row["id"] == run_id]
        return row

    def end(self, run_id: str, seconds: float = 20.0) -> dict[str, Any]:
        """The row of a run once it has ended."""
        wait_until(lambda: self.row(run_id)["state"] not in ("queued", "running"), seconds)
        return self.row(run_id)

    def folder(self, run_id: str) -> Path:
        return self.workdir / "runs" / run_id


def wait_until(true: Callable[[], object], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def processes_of(run_id: str, folder: Path) -> list[int]:
    """Living processes that carry this run's id and belong to its folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes()
            mine = str(folder) in environment.decode("utf-8", "replace") + (entry / "cmdline").read_text()
        except OSError:
            continue
        if f"ORCH_RUN_ID={run_id}".encode() in environment.split(b"\0") and mine:
            found.append(int(entry.name))
    return found


def as_nobody(action: Callable[[], Any]) -> Any:
    """What `action` returns when a user without rights does it, as JSON; its AgentError as {"error": message}."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            os.environ["HOME"] = "/nonexistent"
            os.write(writer, json.dumps(action()).encode())
        except AgentError as error:
            os.write(writer, json.dumps({"error": error.message}).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(answer)
