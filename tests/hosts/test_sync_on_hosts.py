"""Every state of the three-way comparison between a project here and a real OpenSSH host: odd names, links, modes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import CHECKOUT, TestHosts

pytestmark = pytest.mark.hosts
LINES = "".join(f"line {number}\n" for number in range(12))
FILES = {
    "eval.py": LINES,
    "run.sh": "#!/bin/sh\n",
    "-n": "dash\n",
    'it\'s "$(x)" é.py': "odd\n",
    "lib/a b.py": "A = 1\n",
}
JOB = 'harness: {local: harness, remote: ~/synced}\ncommand: ["{python}", eval.py, "{checkpoint}", "{result}"]\n'


@dataclass
class Desk:
    """A project on this machine, and the harness folder on `eval` as this machine sees it."""

    folder: Path
    remote: Path
    hosts: TestHosts

    @property
    def local(self) -> Path:
        return self.folder / "harness"

    def orch(self, *words: str, code: int = 0) -> dict[str, Any]:
        command = [sys.executable, "-c", "from orchestrator.cli import main; main()", "sync-harness", *words, "--json"]
        own = {"ORCH_HOME": str(self.folder / "state"), "PYTHONPATH": str(CHECKOUT)}
        done = subprocess.run(
            command,
            cwd=self.folder,
            env={**os.environ, **own},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        document = json.loads(done.stdout)
        assert isinstance(document, dict)
        return document

    def same(self) -> bool:
        return contents(self.local) == contents(self.remote)


def contents(root: Path) -> dict[str, tuple[bytes, bool]]:
    return {
        str(path.relative_to(root)): (path.read_bytes(), bool(path.stat().st_mode & 0o100))
        for path in root.rglob("*")
        if path.is_file() and ".orch" not in path.relative_to(root).parts
    }


def edit(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


@pytest.fixture(params=["fabric", "openssh"])
def desk(testhosts: TestHosts, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Desk]:
    host = f"{{ssh: root@eval, roles: [eval], transport: {request.param}, python: {sys.executable}}}"
    (tmp_path / "hosts.yaml").write_text(f"hosts:\n  eval: {host}\nruns: {{}}\n")
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/job.yaml").write_text(JOB)
    for name, text in FILES.items():
        (tmp_path / "harness" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "harness" / name).write_text(text)
    (tmp_path / "harness/run.sh").chmod(0o755)
    (tmp_path / "harness/same.py").symlink_to("eval.py")
    yield Desk(tmp_path, testhosts.state / "eval" / "fs" / "p" / "root" / "synced", testhosts)
    testhosts.sh("eval", "rm -rf /root/synced", check=False)


def test_every_state_and_every_way_out_of_it(desk: Desk) -> None:
    assert desk.orch("--check", code=1)["state"] == "absent"
    assert len(desk.orch()["pushed"]) == 6 and desk.same()
    assert desk.orch("--check")["state"] == "in_sync"

    edit(desk.local / "-n", "dash", "dash, edited")
    (desk.local / "eval.py").chmod(0o755)  # and with it same.py, a link to it
    assert desk.orch("--check", code=1)["state"] == "local_ahead"
    assert desk.orch()["pushed"] == ["-n", "eval.py", "same.py"] and desk.same()

    odd = 'it\'s "$(x)" é.py'
    edit(desk.remote / odd, "odd", "edited there")
    (desk.remote / "lib/a b.py").rename(desk.remote / "lib/c d.py")
    refused = desk.orch(code=6)
    assert refused["state"] == "remote_edited" and "--keep-remote" in refused["error"]["hint"]
    assert {"path": "lib/c d.py", "change": "added", "side": "remote", "renamed_from": "lib/a b.py"} in refused["files"]
    kept = desk.orch("--keep-remote")
    assert sorted(kept["pulled"]) == sorted([odd, "lib/c d.py", "lib/a b.py"]) and desk.same()
    assert Path(kept["saved_here"], odd).read_text() == "odd\n"
    assert desk.orch()["state"] == "in_sync"

    edit(desk.local / "eval.py", "line 1\n", "mine\n")
    edit(desk.remote / "eval.py", "line 9\n", "theirs\n")
    merged = desk.orch("--merge")
    assert merged["state"] == "both" and merged["conflicts"] == [] and "eval.py" in merged["pushed"]
    assert "mine\n" in (desk.remote / "eval.py").read_text() and "theirs\n" in (desk.remote / "eval.py").read_text()

    edit(desk.local / "run.sh", "sh", "bash")
    edit(desk.remote / "run.sh", "sh", "dash")
    assert desk.orch("--merge", code=6)["conflicts"] == ["run.sh"]
    assert "<<<<<<<" in (desk.local / "run.sh").read_text() and (desk.remote / "run.sh").read_text() == "#!/bin/dash\n"
    desk.orch("--take-local", code=6)
    (desk.local / "run.sh").write_text("#!/bin/zsh\n")
    saved = desk.orch()["saved"]
    assert desk.hosts.sh("eval", f"cat {saved}/run.sh").stdout == "#!/bin/dash\n" and desk.same()

    edit(desk.remote / "run.sh", "zsh", "ash")
    assert desk.orch("--take-local")["saved"] and desk.same()


def test_an_agent_killed_in_the_middle_of_a_push_is_mended_by_the_same_command(desk: Desk) -> None:
    desk.orch()
    for number in range(400):
        (desk.local / f"f{number}.py").write_text(f"{number}\n" * 200)
    command = [sys.executable, "-c", "from orchestrator.cli import main; main()", "sync-harness"]
    own = {"ORCH_HOME": str(desk.folder / "state"), "PYTHONPATH": str(CHECKOUT)}
    typed = subprocess.Popen(
        command, cwd=desk.folder, env={**os.environ, **own}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 60
    while not list(desk.remote.glob("f*.py")):
        assert typed.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    desk.hosts.sh("eval", "pkill -KILL -f -- '^[^ ]*python[^ ]* -I -S -B -c'", check=False)
    typed.communicate(timeout=60)
    if typed.returncode:
        (desk.local / "f0.py").write_text("changed once more\n")
        assert desk.orch("--check", code=1)["state"] == "local_ahead"
    assert desk.orch()["saved"] is None and desk.same()


def test_a_folder_of_somebody_else_is_refused_in_words(desk: Desk) -> None:
    desk.orch()
    desk.hosts.sh("eval", "chmod 755 /root; mkdir /srv/others; chmod 755 /srv/others")
    try:
        hosts = (desk.folder / "hosts.yaml").read_text().replace("root@eval", "dev@eval")
        (desk.folder / "hosts.yaml").write_text(hosts)
        (desk.folder / "jobs/job.yaml").write_text(JOB.replace("~/synced", "/srv/others"))
        error = desk.orch(code=6)["error"]
        assert "no permission to write" in error["message"] and "as it was" in error["message"]
    finally:
        desk.hosts.sh("eval", "rmdir /srv/others; chmod 700 /root")
