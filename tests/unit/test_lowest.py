"""On a host that trains every command begins at the lowest priority, not only once the agent runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.model import Host, Timeouts
from orchestrator.ssh import lowest
from orchestrator.ssh.choose import connect

TELL = "import os; print(os.getpriority(os.PRIO_PROCESS, 0), open('/proc/self/autogroup').read().split()[-1])"
HERE = os.getpriority(os.PRIO_PROCESS, 0)

pytestmark = pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="a kernel without autogroups")


def told(roles: frozenset[str], code: str = TELL) -> list[str]:
    host = Host(name="me", ssh="me", roles=roles, transport="local")  # type: ignore[arg-type]
    connection = connect(host, Timeouts(), interactive=False)
    try:
        done = connection.run([sys.executable, "-I", "-S", "-B", "-c", code])
    finally:
        connection.close()
    assert done.exit == 0, done.stderr
    return done.stdout.decode().split()


@pytest.mark.parametrize("roles", [{"train"}, {"train", "eval"}])
def test_a_command_on_a_host_that_trains_starts_lowered_with_its_session(roles):
    assert told(frozenset(roles)) == ["19", "19"]


def test_a_command_elsewhere_starts_as_it_is_typed():
    assert told(frozenset({"eval"}))[0] == str(HERE)


LEADER = """
import subprocess, sys
weight = lambda: open('/proc/self/autogroup').read()
before = weight()
told = subprocess.run(sys.argv[1:], capture_output=True, text=True, check=True).stdout
assert before and weight() == before, (before, weight())
print(told)
"""


def test_a_session_that_somebody_else_leads_keeps_its_weight():
    """The leader begins a session of its own: the one that the tests run in may have no autogroup."""
    shell = ["/bin/sh", "-c", lowest.SCRIPT + '"$@"; exit $?', "sh", sys.executable, "-c", TELL]
    done = subprocess.run(
        [sys.executable, "-c", LEADER, *shell], capture_output=True, text=True, start_new_session=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["19", "0"]


def test_without_nice_and_proc_the_command_runs_all_the_same(tmp_path):
    script = lowest.SCRIPT.replace("/proc/", f"{tmp_path}/") + '"$@"; exit $?'
    command = [sys.executable, "-c", "import sys; print('came', *sys.argv[1:])", "a b", "$HOME"]
    done = subprocess.run(
        ["/bin/sh", "-c", script, "sh", *command],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("came a b $HOME\n", "")
