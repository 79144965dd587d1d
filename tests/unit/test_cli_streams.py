"""The command itself, where its streams or its state folder are not what they usually are."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest

ROOT = Path(__file__).parents[2]
ORCH = f'{sys.executable} -c "from orchestrator.cli import main; main()"'
HOSTS = f"hosts: {{here: {{roles: [eval], transport: local, root: ., python: {sys.executable}}}}}\n"


def shell(folder: Path, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A line typed at a shell; `orch` is the command."""
    (folder / "hosts.yaml").write_text(HOSTS)
    own = {"PYTHONPATH": str(ROOT), "ORCH_HOME": str(folder / "state"), "PYTHONUNBUFFERED": "1"}
    return subprocess.run(
        ["bash", "-c", f'orch() {{ {ORCH} "$@"; }}; {command}'],
        cwd=folder,
        env={**os.environ, **own, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    "command", ["orch status <&-", "orch status 2>&-", "orch status >&-", "orch status --json <&-"]
)
def test_a_closed_stream_is_no_failure(tmp_path: Path, command: str) -> None:
    done = shell(tmp_path, command)
    assert done.returncode == 0, done.stderr
    assert "unexpected" not in done.stderr


def on_a_terminal(folder: Path, word: str, *, code: int, stderr: IO[str] | None = None) -> str:
    """What a command of one word shows on a terminal: all of it, or its stdout where stderr goes elsewhere."""
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as seen:
        own = {"PYTHONPATH": str(ROOT), "ORCH_HOME": str(folder / "state"), "COLUMNS": "200"}
        words = [*shlex.split(ORCH), word]
        typed = subprocess.Popen(words, cwd=folder, env={**os.environ, **own}, stdout=theirs, stderr=stderr or theirs)
        os.close(theirs)
        text = b""
        with suppress(OSError):  # how Linux tells that the other end is closed
            while piece := seen.read(65536):
                text += piece
        assert typed.wait(timeout=60) == code
    return text.decode()


def test_on_a_terminal_an_unreachable_host_is_told_once_and_in_a_file_the_message_stays(tmp_path: Path) -> None:
    reason = "no sshd on that port"
    told = f"{HOSTS.rstrip()[:-1]}, gone: {{ssh: root@127.0.0.1:9, roles: [eval]}}}}"
    command = f"echo {shlex.quote(told)} > hosts.yaml; orch status"
    apart = shell(tmp_path, f"{command} > /dev/null")
    assert apart.returncode == 4 and apart.stderr.count(reason) == 1
    with (tmp_path / "errors").open("w+") as errors:
        assert reason in on_a_terminal(tmp_path, "status", code=4, stderr=errors)
    assert (tmp_path / "errors").read_text().count(reason) == 1
    text = on_a_terminal(tmp_path, "status", code=4)
    assert text.count(reason) == 1 and "orch: no answer from gone, as said above" in text.splitlines()


def test_a_table_in_a_pipe_is_as_wide_as_columns_says(tmp_path: Path) -> None:
    narrow, wide = (shell(tmp_path, "orch status | cat", COLUMNS=width) for width in ("60", "oddly"))
    assert max(map(len, narrow.stdout.splitlines())) <= 60 < max(map(len, wide.stdout.splitlines())) <= 200


def test_a_reader_that_goes_away_is_no_bug(tmp_path: Path) -> None:
    done = shell(tmp_path, "orch status | true; orch status --json | true")
    assert "unexpected" not in done.stderr and "Traceback" not in done.stderr


def test_a_full_disk_behind_stdout_is_said(tmp_path: Path) -> None:
    done = shell(tmp_path, "orch status > /dev/full")
    assert done.returncode == 1 and "full" in done.stderr and "unexpected" not in done.stderr


def test_a_bug_is_reported_also_where_its_traceback_can_not_be_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    command = "orch status --inventory hosts.yaml"
    sabotage = tmp_path / "sabotage" / "sitecustomize.py"
    sabotage.parent.mkdir()
    sabotage.write_text("import orchestrator.config as c\nc.load_inventory = lambda path: 1 // 0\n")
    path = f"{sabotage.parent}:{ROOT}"
    done = shell(tmp_path, f"{command} --json", ORCH_HOME=str(tmp_path / "file" / "state"), PYTHONPATH=path)
    assert done.returncode == 1
    assert "ZeroDivisionError" in json.loads(done.stdout)["error"]["message"]
    assert "can't be written" in done.stderr


def test_sigterm_ends_as_ctrl_c_does_and_the_document_is_printed(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\ntouch started; exec sleep 30\n")
    slow.chmod(0o755)
    (tmp_path / "hosts.yaml").write_text(HOSTS.replace(sys.executable, str(slow)))
    typed = subprocess.Popen(
        [sys.executable, "-c", "from orchestrator.cli import main; main()", "status", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "ORCH_HOME": str(tmp_path / "state")},
        stdout=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 30
    while not (tmp_path / "started").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    typed.send_signal(signal.SIGTERM)
    out, _ = typed.communicate(timeout=20)
    assert typed.returncode == 130 and json.loads(out)["error"]["code"] == 130
