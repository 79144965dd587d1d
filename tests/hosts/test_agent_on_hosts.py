"""The agent on real hosts: any login shell, no or old python, and a path that dies behind a jump host."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.errors import ConfigError, ConnectionLost, RemotePythonError
from orchestrator.model import Host, Timeouts
from orchestrator.ssh.agent import Conversation, ask
from orchestrator.ssh.choose import connect
from orchestrator.ssh.connection import Connection

pytestmark = pytest.mark.hosts
TIMEOUTS = Timeouts(connect=10, heartbeat=0.5, dead=4, agent_dead=3)
ODD = '/tmp/it\'s a "folder" $(touch /tmp/gotcha) `x` \\n! \n end'


def host(target: str, *, python: str = "python3", transport: str = "auto") -> Host:
    return Host(name="box", ssh=target, roles=frozenset({"train"}), python=python, transport=transport)  # type: ignore[arg-type]


@pytest.fixture
def reach(testhosts) -> Callable[..., tuple[Connection, Host]]:  # type: ignore[no-untyped-def]
    """Connections that are closed at the end."""
    opened: list[Connection] = []

    def to(target: str, **more: str) -> tuple[Connection, Host]:
        box = host(target, **more)
        connection = connect(box, TIMEOUTS, interactive=False)
        opened.append(connection)
        return connection, box

    yield to
    for connection in opened:
        connection.close()


@pytest.mark.parametrize("transport", ["fabric", "openssh"])
@pytest.mark.parametrize("user", ["root", "dev", "noisy", "fishy", "cshy"])
def test_a_question_is_answered_for_every_login_shell(reach, testhosts, user: str, transport: str) -> None:  # type: ignore[no-untyped-def]
    connection, box = reach(f"{user}@train", transport=transport)
    with pytest.raises(ConfigError) as caught:
        ask(connection, box, "scan", {"root": ODD}, role="train", timeouts=TIMEOUTS)
    assert "no such folder" in str(caught.value) and "it's a" in str(caught.value)
    assert testhosts.sh("train", "test ! -e /tmp/gotcha").returncode == 0


def test_a_user_without_a_shell_is_told_so(reach) -> None:  # type: ignore[no-untyped-def]
    connection, box = reach("nosh@train")
    with pytest.raises(RemotePythonError, match="may not run commands"):
        ask(connection, box, "scan", {"root": "/"}, role="train", timeouts=TIMEOUTS)


@pytest.mark.parametrize("user", ["root", "fishy", "cshy"])
def test_a_host_without_that_python_is_told_so(reach, user: str) -> None:  # type: ignore[no-untyped-def]
    connection, box = reach(f"{user}@train", python="/opt/no/python3")
    with pytest.raises(RemotePythonError, match="no /opt/no/python3 there"):
        ask(connection, box, "scan", {"root": "/"}, role="train", timeouts=TIMEOUTS)


def old_python() -> Path | None:
    """A real Python that is too old for the agent."""
    installed = sorted(Path("~/.pyenv/versions").expanduser().glob("3.[67].*/bin/python"))
    return installed[0].resolve() if installed else None


@pytest.mark.skipif(old_python() is None, reason="no Python older than 3.8 here")
def test_too_old_a_python_is_told_so(reach, testhosts) -> None:  # type: ignore[no-untyped-def]
    old = old_python()
    assert old is not None
    home = testhosts.state / "train" / "fs" / "p" / "home" / "dev" / "old"
    shutil.copytree(old.parents[1], home, ignore=shutil.ignore_patterns("test", "__pycache__", "*.a", "site-packages"))
    start = home / "start"
    start.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH=/home/dev/old/lib exec /home/dev/old/bin/{old.name} "$@"\n')
    start.chmod(0o755)
    try:
        connection, box = reach("dev@train", python="/home/dev/old/start")
        with pytest.raises(RemotePythonError, match=r"is python 3\.[67]; 3\.8 or later is needed"):
            ask(connection, box, "scan", {"root": "/"}, role="train", timeouts=TIMEOUTS)
    finally:
        shutil.rmtree(home)


def slow_sending(connection: Connection, box: Host, root: str) -> Conversation:
    """A question that takes ten seconds: 40 MB at 4 MB/s."""
    found = ask(connection, box, "scan", {"root": root}, role="train", timeouts=TIMEOUTS)["latest"]
    args = {
        "root": root,
        "path": found["path"],
        "ship": "whole",
        "identity": found["identity"],
        "limit_rate": 4_000_000,
    }
    return Conversation(connection, box, "send", args, role="train", timeouts=TIMEOUTS)


def agents(testhosts) -> str:  # type: ignore[no-untyped-def]
    return testhosts.sh("train", "pgrep -f '[o]rch-old-python' || true").stdout.strip()


@pytest.fixture
def checkpoints(testhosts) -> str:  # type: ignore[no-untyped-def]
    """A folder on `train` with one complete checkpoint of 40 MB."""
    torch = pytest.importorskip("torch")
    folder = testhosts.state / "train" / "fs" / "p" / "tmp" / "many" / "step_1"
    folder.mkdir(parents=True)
    torch.save({"model": {"w": torch.zeros(10_000_000)}, "step": 1}, folder / "checkpoint.pt")
    yield "/tmp/many"
    shutil.rmtree(folder.parent)


def test_a_path_that_dies_behind_a_jump_host_is_seen_on_both_sides(  # type: ignore[no-untyped-def]
    reach, testhosts, checkpoints: str, tmp_path
) -> None:
    config = tmp_path / "config"
    far = f"Host far\n  HostName {testhosts.address('train')}\n  HostKeyAlias train\n  ProxyJump root@jump\n"
    config.write_text(testhosts.config.read_text() + far)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("ORCH_SSH_CONFIG", str(config))
        connection, box = reach("root@far")
    with slow_sending(connection, box, checkpoints) as sending:
        events = sending.events()
        plan = next(events)
        assert isinstance(plan, dict)
        sending.tell({"missing": [[0, (plan["size"] - 1) // plan["chunk"]]], "way": {}})
        assert isinstance(next(events), bytes)
        assert agents(testhosts)
        with testhosts.unplugged("jump", "train"):
            cut = time.monotonic()
            with pytest.raises(ConnectionLost):
                for _ in events:
                    pass
            assert time.monotonic() - cut < TIMEOUTS.dead + 2
            while agents(testhosts):
                assert time.monotonic() - cut < TIMEOUTS.agent_dead + 6, "the agent outlived its heartbeat"
                time.sleep(0.2)


def test_the_agent_is_gone_soon_after_its_controller_lets_go(reach, testhosts, checkpoints: str) -> None:  # type: ignore[no-untyped-def]
    connection, box = reach("root@train")
    with slow_sending(connection, box, checkpoints) as sending:
        next(sending.events())
        assert agents(testhosts)
    deadline = time.monotonic() + 5
    while agents(testhosts):
        assert time.monotonic() < deadline
        time.sleep(0.1)
