"""The conversation with the agent: it starts through noise, says why it can't, and ends when nobody listens."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.errors import ConfigError, ConnectionLost, RemotePythonError
from orchestrator.model import Host, Timeouts
from orchestrator.ssh.agent import Conversation, ask, why_no_agent
from orchestrator.ssh.listening import Listening
from orchestrator.ssh.local import LocalConnection
from remote_payload.agent import wire

ROOT = Path(__file__).parent.parent.parent
TIMEOUTS = Timeouts(heartbeat=0.5, dead=20.0, agent_dead=20.0)


def host(python: str = sys.executable) -> Host:
    return Host(name="here", ssh="here", roles=frozenset({"eval"}), transport="local", python=python)


def question(python: str = sys.executable) -> None:
    ask(
        LocalConnection(host(python), TIMEOUTS),
        host(python),
        "scan",
        {"root": "/no/such"},
        role="train",
        timeouts=TIMEOUTS,
    )


def test_an_expected_failure_on_the_host_becomes_the_error_with_its_exit_code() -> None:
    with pytest.raises(ConfigError, match="/no/such"):
        question()


def test_noise_of_a_login_shell_is_dropped(tmp_path: Path) -> None:
    noisy = tmp_path / "python"
    noisy.write_text(f'#!/bin/sh\necho "Welcome! quota 93%"\nexec {sys.executable} "$@"\n')
    noisy.chmod(0o755)
    with pytest.raises(ConfigError, match="/no/such"):
        question(str(noisy))


def test_a_host_without_that_python_says_so() -> None:
    with pytest.raises(RemotePythonError, match=r"no python3\.99 there"):
        question("python3.99")


@pytest.mark.parametrize(
    ("status", "said", "message"),
    [
        (1, "orch-old-python 3.6\n", "is python 3.6; 3.8 or later is needed"),
        (1, "This account is currently not available.\n", "may not run commands"),
        (1, "python3: Command not found.\n", "no python3 there"),
        (127, "fish: Unknown command: python3", "no python3 there"),
        (1, "ImportError: no module named zlib", "did not start the agent"),
    ],
)
def test_each_way_not_to_start_has_its_sentence(status: int, said: str, message: str) -> None:
    assert message in why_no_agent(host("python3"), status, said)["message"]


@pytest.mark.parametrize("status", [1, 127])
def test_what_to_type_for_this_machine_as_a_host_needs_no_ssh(status: int) -> None:
    here = why_no_agent(host("/nope/python"), status, "sh: not startable")
    assert "try: /nope/python --version" in here["hint"] and "ssh" not in here["hint"]
    away = Host(name="far", ssh="me@far", roles=frozenset({"eval"}), python="/nope/python")
    assert "try: ssh me@far /nope/python --version" in why_no_agent(away, status, "sh: not startable")["hint"]


TALKER = """
import sys, time
from remote_payload.agent.talk import Talk
out = open(1, "wb", buffering=0, closefd=False)
talk = Talk(sys.stdin.buffer, out, beat=0.2, dead=1.0, bundle="")
talk.start()
child = talk.spawn(["sleep", "60"])
talk.progress({"child": child.pid})
time.sleep(60)
"""


def gone(pid: int, within: float) -> bool:
    end = time.monotonic() + within
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize("ending", ["eof", "silence"])
def test_the_agent_ends_with_what_it_started_when_the_controller_is_gone(ending: str) -> None:
    agent = subprocess.Popen(
        [sys.executable, "-c", TALKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, start_new_session=True
    )
    assert agent.stdin and agent.stdout
    try:
        frame = wire.read_frame(agent.stdout.read)
        assert frame is not None
        child = wire.decode_json(frame[1])["progress"]["child"]
        if ending == "eof":
            agent.stdin.close()
        assert agent.wait(timeout=5) == 71
        assert gone(child, within=2)
    finally:
        if agent.poll() is None:
            os.killpg(agent.pid, signal.SIGKILL)
        agent.stdout.close()
        if not agent.stdin.closed:
            agent.stdin.close()


def test_heartbeats_keep_the_agent_alive() -> None:
    agent = subprocess.Popen([sys.executable, "-c", TALKER], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=ROOT)
    assert agent.stdin
    try:
        for _ in range(20):
            agent.stdin.write(wire.encode(wire.BEAT))
            agent.stdin.flush()
            time.sleep(0.1)
        assert agent.poll() is None
    finally:
        agent.stdin.close()
        assert agent.wait(timeout=5) == 71


def test_an_agent_that_was_kept_from_running_does_not_take_that_for_silence() -> None:
    """On a training box it comes last: beats may lie there unread for longer than it waits for one."""
    agent = subprocess.Popen([sys.executable, "-c", TALKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    assert agent.stdin and agent.stdout
    try:
        assert wire.read_frame(agent.stdout.read) is not None
        for _ in range(5):
            agent.send_signal(signal.SIGSTOP)
            agent.stdin.write(wire.encode(wire.BEAT))
            agent.stdin.flush()
            time.sleep(1.2)
            agent.send_signal(signal.SIGCONT)
            time.sleep(0.1)
        assert agent.poll() is None
    finally:
        agent.stdin.close()
        assert agent.wait(timeout=5) == 71
        agent.stdout.close()


@pytest.mark.skipif(sys.platform != "linux", reason="holds Linux' resource limits")
def test_on_a_training_box_the_kernel_lets_no_file_grow(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from remote_payload.agent.main import _stay_harmless\n"
        "_stay_harmless(endless=False)\n"
        "fd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)\n"
        "os.write(fd, b'x')\n"
    )
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path / "f")], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 1
    assert "File too large" in run.stderr
    assert (tmp_path / "f").stat().st_size == 0


CHATTY = """
import sys
from remote_payload.agent import wire
out = open(1, "wb", buffering=0, closefd=False)
out.write(wire.MARK)
for number in range({count}):
    out.write(wire.encode_json({{"progress": {{"received": number, "total": {count}}}}}))
out.write(wire.encode_json({{"progress": {{"missing": [[1, 2]]}}}}))
open({mark!r}, "w").close()
sys.stdin.read()
"""


def test_progress_is_heard_while_nobody_waits_for_it_so_that_the_other_end_never_stands_still(tmp_path: Path) -> None:
    count, done = 20_000, tmp_path / "done"  # about 1 MB: no pipe holds that
    code = tmp_path / "chatty.py"
    code.write_text(CHATTY.format(count=count, mark=str(done)))
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\ncd {ROOT} && PYTHONPATH={ROOT} exec {sys.executable} {code}\n")
    python.chmod(0o755)
    here, heard = host(str(python)), []
    with Conversation(
        LocalConnection(here, TIMEOUTS), here, "receive", {}, role="eval", timeouts=TIMEOUTS
    ) as conversation:
        listening = Listening(conversation, frozenset({"missing"}), lambda said: heard.append(said["received"]))
        deadline = time.monotonic() + 20
        while not done.exists():  # nothing is expected meanwhile, as during a long round
            assert time.monotonic() < deadline, f"stands still after {len(heard)} messages"
            time.sleep(0.05)
        assert listening.expect("missing") == [[1, 2]]
    assert heard == list(range(count))


def test_an_agent_that_lives_but_does_not_answer_is_not_waited_for_without_end(tmp_path: Path) -> None:
    fifo = tmp_path / "pid"
    os.mkfifo(fifo)  # opening it to read waits until somebody writes: a file system that hangs
    slow = Timeouts(heartbeat=0.3, dead=20.0, agent_dead=20.0, question=2.0)
    run = {"name": "r", "process": {"pidfile": str(fifo)}, "log": None, "progress": None, "source": None}
    args = {"disk_path": "/", "runs": [{**run, "checkpoints": None}], "gpus": False, "sample": False, "eval": None}
    began = time.monotonic()
    with pytest.raises(ConnectionLost, match="no answer within"):
        ask(LocalConnection(host(), slow), host(), "observe", args, role="eval", timeouts=slow)
    assert time.monotonic() - began < 10


@pytest.mark.skipif(sys.platform != "linux", reason="holds Linux' resource limits")
@pytest.mark.parametrize("endless", [True, False])
def test_on_a_training_box_memory_and_a_looks_cpu_time_are_bounded_and_children_inherit_it(endless: bool) -> None:
    code = (
        "import json, resource as r, subprocess, sys\n"
        "from remote_payload.agent.main import _stay_harmless\n"
        f"_stay_harmless(endless={endless})\n"
        "ask = 'import json, resource as r; print(json.dumps([r.getrlimit(k)[0] for k in (r.RLIMIT_DATA, r.RLIMIT_AS,"
        " r.RLIMIT_CPU, r.RLIMIT_FSIZE, r.RLIMIT_CORE)]))'\n"
        "sys.exit(subprocess.call([sys.executable, '-c', ask]))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    data, space, cpu, file, core = json.loads(run.stdout)
    assert 0 < data <= 1 << 30 and 0 < space <= 8 << 30 and (file, core) == (0, 0)
    assert (cpu == -1) if endless else (0 < cpu <= 120)
