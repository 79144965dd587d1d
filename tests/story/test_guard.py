"""`orch guard` and `orch receipt`: a training that really steps, and commands typed beside it."""

from __future__ import annotations

import json
import os
import pty
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from desk import ORCH, Desk
from world import wait_until


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.clear()


def shell(desk: Desk, text: str) -> list[str]:
    return ["sh", "-c", f"cd {desk.folder}; {text}"]


def test_a_command_keeps_its_output_and_its_exit_code_and_leaves_a_receipt(desk: Desk) -> None:
    desk.furnish("box")
    done = desk.orch("guard", "tiny", "--", *shell(desk, "echo mine; exit 7"))
    assert (done.returncode, done.stdout) == (7, "mine\n"), done.stderr
    assert "training: undisturbed: same process" in done.stderr
    kept = desk.json("receipt", "latest", "--json")
    assert (kept["kind"], kept["run"], kept["exit_code"], kept["program"]) == ("guard", "tiny", 7, "sh")
    assert [window["doing"] for window in kept["windows"]] == ["command", "aftermath"]
    assert any("watched for" in limit and "not for 60 s" in limit for limit in kept["limits"])
    assert desk.json("receipt", kept["id"][:-2], "--json")["id"] == kept["id"], "a beginning that only it has"
    shown = desk.orch("receipt", "tiny")
    assert shown.returncode == 0 and "undisturbed" in shown.stdout and "aftermath" in shown.stdout
    unknown = desk.orch("receipt", "nothing")
    assert unknown.returncode == 2 and kept["id"] in unknown.stderr


def test_a_training_that_dies_beside_the_command_is_exit_9(desk: Desk) -> None:
    desk.furnish("box")
    kill = shell(desk, "kill -9 $(cat box/train.pid); sleep 0.2; echo said")
    document = desk.json("guard", "tiny", "--json", "--", *kill, code=9)
    assert document["verdict"] == "changed" and document["exit_code"] == 0
    assert "it was killed (signal 9 (SIGKILL))" in document["reasons"][0]
    assert document["error"]["code"] == 9 and document["id"] in document["error"]["hint"]


def test_a_training_that_dies_right_after_the_command_is_exit_9(desk: Desk) -> None:
    desk.furnish("box", aftermath="4s")
    done = desk.orch("guard", "tiny", "--", *shell(desk, "(sleep 1.5; kill -9 $(cat box/train.pid)) >/dev/null 2>&1 &"))
    assert done.returncode == 9, done.stderr
    assert "after the command" in done.stderr and "signal 9" in done.stderr


def test_a_receipt_that_can_not_be_kept_costs_neither_verdict_nor_exit_code(desk: Desk) -> None:
    desk.furnish("box")
    document = desk.json("guard", "tiny", "--json", "--", *shell(desk, "touch $ORCH_HOME/guards; exit 7"), code=7)
    assert document["verdict"] == "undisturbed" and document["exit_code"] == 7 and document["file"] == ""
    assert "could not be kept" in document["warnings"][0]


def test_each_training_host_is_judged_alone(desk: Desk) -> None:
    desk.furnish("one", "two")
    document = desk.json("guard", "tiny", "--json", "--", *shell(desk, "kill -STOP $(cat two/train.pid)"), code=9)
    assert {row["host"]: row["verdict"] for row in document["hosts"]} == {"one": "undisturbed", "two": "changed"}
    assert document["reasons"][0].startswith("two: while the command ran: process")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signals_are_passed_on_to_the_command(desk: Desk, number: signal.Signals) -> None:
    desk.furnish("box")
    name = number.name.removeprefix("SIG")
    typed = desk.start(
        "guard", "tiny", "--", *shell(desk, f"trap 'exit 5' {name}; touch up; while :; do sleep 0.1; done")
    )
    wait_until((desk.folder / "up").exists, 60)
    typed.send_signal(number)
    _, said = typed.communicate(timeout=60)
    assert typed.returncode == 5, said
    assert "training: undisturbed" in said


def test_a_command_ended_by_a_signal_shows_it_as_a_shell_does(desk: Desk) -> None:
    desk.furnish("box")
    assert desk.orch("guard", "tiny", "--", *shell(desk, "kill -TERM $$")).returncode == 128 + signal.SIGTERM


def test_nothing_is_started_where_training_can_not_be_watched(desk: Desk) -> None:
    desk.furnish("box")
    started = desk.folder / "started"
    assert desk.orch("guard", "tiny", "--", "no-such-command").returncode == 2
    text = (desk.folder / "hosts.yaml").read_text()
    (desk.folder / "hosts.yaml").write_text(text.replace(f"python: {sys.executable}", "python: no-python"))
    done = desk.orch("guard", "tiny", "--", "touch", str(started))
    assert done.returncode == 4 and "no-python" in done.stderr
    (desk.folder / "hosts.yaml").write_text(text.split("process:")[0].rstrip(" ,\n") + "}\n")
    done = desk.orch("guard", "tiny", "--", "touch", str(started))
    assert done.returncode == 2 and "process:" in done.stderr
    assert not started.exists()


def test_a_training_that_is_not_there_is_said_before_the_command_runs(desk: Desk) -> None:
    desk.furnish("box")
    desk.trainings["box"].kill()
    desk.trainings["box"].wait()
    done = desk.orch("guard", "tiny", "--", "true")
    assert done.returncode == 0
    assert "no training process of run tiny to watch" in done.stderr and "not_observed" in done.stderr


def test_contact_that_was_lost_is_taken_up_again_and_the_gap_is_said(desk: Desk) -> None:
    """The agent is killed from outside, as a cut link ends it."""
    desk.furnish("box")
    typed = desk.start(
        "guard", "tiny", "--json", "--", *shell(desk, "touch up; while [ ! -e down ]; do sleep 0.1; done")
    )
    wait_until((desk.folder / "up").exists, 60)

    def agents() -> list[int]:
        below = Path(f"/proc/{typed.pid}/task").glob("*/children")
        children = [int(pid) for file in below for pid in file.read_text().split()]
        return [pid for pid in children if b"\0-I\0" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    (first,) = agents()
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: any(pid != first for pid in agents()), 30)
    (desk.folder / "down").touch()
    out, err = typed.communicate(timeout=60)
    assert typed.returncode == 0, err
    document = json.loads(out)
    assert document["verdict"] == "undisturbed"
    assert any("inside `command`, nobody watched from" in limit for limit in document["limits"])


def test_ctrl_c_at_a_terminal_reaches_the_command_once(desk: Desk) -> None:
    """The terminal tells the command itself; passing it on too would make two of one."""
    desk.furnish("box")
    script = "trap 'echo told >> told' INT; touch up; while [ ! -e told ]; do sleep 0.1; done; sleep 0.5; exit 6"
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(desk.folder)
        os.execvpe(ORCH[0], [*ORCH, "guard", "tiny", "--", *shell(desk, script)], desk.environment())
    wait_until((desk.folder / "up").exists, 60)
    os.write(terminal, b"\x03")
    said = b""
    while piece := _read(terminal):
        said += piece
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 6, said
    assert (desk.folder / "told").read_text() == "told\n"


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the other side is closed
        return b""
