"""This machine as a host: its own sessions, its own home, and nothing of others ended."""

import subprocess
import time

import pytest

from orchestrator.errors import ConfigError
from orchestrator.model import Host, Timeouts
from orchestrator.ssh.choose import Connections, connect


def local(root=None, name="here") -> Host:
    return Host(name=name, ssh=name, roles=frozenset({"eval"}), transport="local", root=root)


@pytest.fixture
def here(tmp_path):
    connection = connect(local(tmp_path), Timeouts(), interactive=False)
    yield connection
    connection.close()


def test_root_is_home_and_working_folder_and_absolute_paths_are_the_machines_own(here, tmp_path):
    (tmp_path / "file").write_text("mine")
    answer = here.run(["sh", "-c", "pwd; echo ~; cat file; test -d /usr && echo usr"])
    assert answer.stdout.decode() == f"{tmp_path}\n{tmp_path}\nmineusr\n"


def test_a_root_that_is_not_there_is_a_wrong_inventory(tmp_path):
    with pytest.raises(ConfigError, match="not a folder"):
        connect(local(tmp_path / "missing"), Timeouts(), interactive=False)


def test_each_command_has_a_session_of_its_own(here):
    sessions = {here.run(["sh", "-c", "ps -o sid= -p $$"]).stdout.strip() for _ in range(2)}
    ours = subprocess.run(["ps", "-o", "sid=", "-p", str(subprocess.os.getpid())], capture_output=True).stdout.strip()
    assert len(sessions) == 2
    assert ours not in sessions


def test_closing_ends_what_was_started_with_its_children_but_not_what_was_detached(here, tmp_path):
    script = "setsid sleep 41.5 & echo $! > detached; sleep 42.5 & echo $! > child; echo ready; wait"
    channel = here.open(["sh", "-c", script])
    assert channel.read(100, timeout=10) == b"ready\n"
    time.sleep(0.1)
    here.close()
    pids = {name: (tmp_path / name).read_text().strip() for name in ("detached", "child")}
    states = {
        name: subprocess.run(["ps", "-o", "args=", "-p", pid], capture_output=True, text=True).stdout.strip()
        for name, pid in pids.items()
    }
    subprocess.run(["kill", pids["detached"]], check=True)
    channel.close()
    assert states["detached"] == "sleep 41.5"
    assert states["child"] != "sleep 42.5"


def test_connections_are_opened_once_a_host_and_closed_together(tmp_path):
    with Connections(Timeouts()) as connections:
        first = connections.to(local(tmp_path))
        assert connections.to(local(tmp_path)) is first
        assert connections.opened() == [first]
        channel = first.open(["sleep", "60"])
        connections.forget(local(tmp_path))
        assert connections.to(local(tmp_path)) is not first
    assert connections.opened() == []
    assert channel.wait(timeout=5).exit == -15
    channel.close()
    with pytest.raises(RuntimeError):
        connections.to(local(tmp_path))
