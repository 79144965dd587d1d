"""One suite for every Connection: local, openssh and fabric keep the same promises, for every kind of login shell."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from orchestrator.errors import AuthenticationFailed, ConnectionLost, HostKeyError, HostUnreachable
from orchestrator.model import Host, Timeouts
from orchestrator.ssh.choose import connect

pytestmark = pytest.mark.hosts

QUICK = Timeouts(connect=6, dead=4, heartbeat=1, agent_dead=6)
SEEN_WITHIN = 20.0
REMOTE = ["openssh", "fabric"]
USERS = ["dev", "noisy", "fishy", "cshy", "root"]
EVERYWHERE = [("local", "me"), *((door, user) for door in REMOTE for user in USERS)]
ONE_EACH = [("local", "me"), *((door, "dev") for door in REMOTE)]
EVERY_BYTE = bytes(range(256)) * 3
MIB = 1 << 20


@pytest.fixture
def door(testhosts):
    """door("openssh", "dev@train") opens a connection; all are closed at the end."""
    opened = []

    def open_door(transport: str, target: str, timeouts: Timeouts = QUICK):
        host = Host(name=target, ssh=target, roles=frozenset({"eval"}), transport=transport)
        opened.append(connect(host, timeouts, interactive=False))
        return opened[-1]

    yield open_door
    for connection in opened:
        connection.close()


@pytest.fixture
def way(door, request):
    """The connection that a test's (transport, user) stands for."""
    transport, user = request.param
    return door(transport, f"{user}@train")


def everywhere(test):
    return pytest.mark.parametrize("way", EVERYWHERE, indirect=True, ids="-".join)(test)


def one_each(test):
    return pytest.mark.parametrize("way", ONE_EACH, indirect=True, ids="-".join)(test)


def remote(test):
    return pytest.mark.parametrize("transport", REMOTE)(test)


def read_all(channel) -> bytes:
    parts = []
    while part := channel.read(MIB, timeout=20):
        parts.append(part)
    return b"".join(parts)


# -- commands ---------------------------------------------------------------------------------------------------

WORDS = [
    "a b",
    "it's",
    '"quoted"',
    "two\nlines",
    "\n",
    "$(id)",
    "`id`",
    "$HOME",
    "!!",
    "a\\b",
    "\\'",
    "",
    "-n",
    "*",
    "~",
]
WORDS += ["é", "%self", "{a,b}", "a;b", "a&b|c", "tab\there", "#", "=ls", "^x^y", "<in>out"]


@everywhere
def test_words_arrive_as_they_were(way):
    answer = way.run(["printf", "%s\\0", *WORDS])
    assert answer.exit == 0, answer.stderr
    assert answer.stdout.endswith("".join(f"{word}\0" for word in WORDS).encode())
    assert answer.argv[0] == "printf"


@everywhere
def test_stdin_and_stdout_carry_every_byte(way):
    assert way.run(["cat"], stdin=EVERY_BYTE).stdout.endswith(EVERY_BYTE)


@everywhere
@pytest.mark.parametrize("status", [0, 3, 255])
def test_an_exit_status_is_the_commands_own(way, status):
    assert way.run(["sh", "-c", f"exit {status}"]).exit == status


@everywhere
def test_death_by_a_signal_is_told_from_a_lost_connection(way):
    assert way.run(["sh", "-c", "kill -KILL $$"]).exit == -signal.SIGKILL


@everywhere
def test_a_missing_command_is_an_exit_status_and_a_word(way):
    answer = way.run(["no-such-command-here"])
    assert answer.exit in (126, 127) or (answer.exit == 1 and b"not found" in answer.stderr.lower())
    assert b"no-such-command-here" in answer.stderr


@remote
def test_a_login_shell_that_runs_nothing_is_an_answer_and_not_a_lost_connection(door, transport):
    answer = door(transport, "nosh@train").run(["true"])
    assert answer.exit == 1
    assert b"not available" in answer.stdout + answer.stderr


@one_each
def test_a_command_out_of_time_is_a_timeout_and_the_connection_goes_on(way):
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        way.run(["sleep", "30"], timeout=0.5)
    assert time.monotonic() - began < 3
    assert way.run(["echo", "still here"]).stdout == b"still here\n"


@one_each
def test_much_stderr_beside_stdout_hangs_nobody(way):
    script = "head -c 5000000 /dev/zero | tr '\\0' e >&2; echo done; head -c 3000000 /dev/zero; exit 7"
    answer = way.run(["sh", "-c", script], timeout=30)
    assert (answer.exit, len(answer.stdout)) == (7, len(b"done\n") + 3_000_000)
    assert answer.stderr.endswith(b"eeee")


@one_each
def test_two_threads_use_one_connection_at_once(way):
    answers = {}

    def ask(word: str) -> None:
        answers[word] = way.run(["sh", "-c", "sleep 0.7; cat"], stdin=word.encode()).stdout

    threads = [threading.Thread(target=ask, args=(word,)) for word in ("one", "two", "three")]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {"one": b"one", "two": b"two", "three": b"three"}
    assert time.monotonic() - began < 2.0


# -- channels ---------------------------------------------------------------------------------------------------


@everywhere
def test_a_channel_answers_while_it_is_open_and_tells_its_end(way):
    channel = way.open(["sh", "-c", "echo ready; cat; echo bye >&2; exit 3"])
    heard = b""
    while b"ready\n" not in heard:
        heard += channel.read(1000, timeout=10)
    channel.write(EVERY_BYTE)
    echoed = b""
    while len(echoed) < len(EVERY_BYTE):
        echoed += channel.read(1000, timeout=10)
    with pytest.raises(TimeoutError):
        channel.read(1000, timeout=0.2)
    channel.close_stdin()
    channel.close_stdin()
    assert channel.read(1000, timeout=10) == b""
    ended = channel.wait(timeout=10)
    channel.close()
    assert echoed == EVERY_BYTE
    assert (ended.exit, ended.stdout) == (3, b"")
    assert ended.stderr.endswith(b"bye\n")


@one_each
def test_a_channel_keeps_the_end_of_a_long_stderr(way):
    channel = way.open(["sh", "-c", "head -c 5000000 /dev/zero | tr '\\0' e >&2; echo last >&2; echo out"])
    assert read_all(channel) == b"out\n"
    ended = channel.wait(timeout=20)
    channel.close()
    assert ended.exit == 0
    assert ended.stderr.endswith(b"eelast\n")
    assert len(ended.stderr) <= 64 * 1024


@one_each
def test_a_channel_whose_command_stopped_reading_is_a_broken_pipe(way):
    channel = way.open(["sh", "-c", "head -c 10 >/dev/null; exit 4"])
    with pytest.raises(BrokenPipeError):
        for _ in range(200):
            channel.write(bytes(MIB))
    assert channel.wait(timeout=10).exit == 4
    channel.close()


@one_each
def test_a_slow_reader_slows_the_writer_down(way):
    channel = way.open(["sh", "-c", "sleep 30"])
    written = []

    def push() -> None:
        try:
            for _ in range(200):
                channel.write(bytes(MIB))
                written.append(MIB)
        except (BrokenPipeError, ConnectionLost):
            pass

    thread = threading.Thread(target=push)
    thread.start()
    time.sleep(1)
    channel.close()
    thread.join(timeout=5)
    assert not thread.is_alive()
    assert sum(written) < 20 * MIB


@one_each
def test_closing_a_channel_is_eof_for_its_command(way):
    probe = f"/tmp/probe-{os.getpid()}-{id(way)}"
    channel = way.open(["sh", "-c", f"echo ready; cat >/dev/null; echo eof >{probe}"])
    assert channel.read(100, timeout=10) == b"ready\n"
    began = time.monotonic()
    channel.close()
    assert time.monotonic() - began < 1.2
    deadline = time.monotonic() + 5
    while way.run(["cat", probe]).stdout != b"eof\n":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    way.run(["rm", probe])


SEND = """
import hashlib, sys
block = bytes(range(256)) * 4096
digest = hashlib.sha256()
for number in range(200):
    piece = number.to_bytes(8, "big") + block[8:]
    digest.update(piece)
    sys.stdout.buffer.write(piece)
sys.stdout.flush()
sys.stderr.write(digest.hexdigest())
"""
RECEIVE = """
import hashlib, sys
digest = hashlib.sha256()
for piece in iter(lambda: sys.stdin.buffer.read(1 << 20), b""):
    digest.update(piece)
print(digest.hexdigest())
"""


@one_each
def test_200_mib_arrive_whole_in_both_directions(way):
    block = memoryview(os.urandom(MIB))
    up = way.open(["python3", "-I", "-c", RECEIVE], bulk=True)
    sent = hashlib.sha256()
    for _ in range(200):
        up.write(block)
        sent.update(block)
    up.close_stdin()
    assert read_all(up).decode().strip() == sent.hexdigest()
    assert up.wait(timeout=10).exit == 0
    up.close()

    down = way.open(["python3", "-I", "-c", SEND], bulk=True)
    received, size = hashlib.sha256(), 0
    while piece := down.read(MIB, timeout=20):
        received.update(piece)
        size += len(piece)
    ended = down.wait(timeout=10)
    down.close()
    assert size == 200 * MIB
    assert ended.stderr.decode() == received.hexdigest()


# -- what is left behind ----------------------------------------------------------------------------------------


def running() -> set[str]:
    """This machine's `ssh` clients with our configuration, wherever they were put, and this process' own children."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,stat=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 3) for line in listed.splitlines()]
    config, me = os.environ["ORCH_SSH_CONFIG"], str(os.getpid())
    return {
        f"{pid} {words}"
        for pid, parent, state, words in rows
        if not state.startswith("Z") and "ps -eo" not in words and (parent == me or config in words)
    }


@pytest.mark.parametrize("case", ONE_EACH, ids="-".join)
def test_a_closed_connection_leaves_no_process(door, case):
    before = running()
    way = door(case[0], f"{case[1]}@train")
    channels = [way.open(["cat"]), way.open(["cat"], bulk=True), way.open(["sleep", "60"])]
    channels[0].write(b"x")
    assert channels[0].read(10, timeout=10) == b"x"
    assert case[0] == "fabric" or running() - before
    began = time.monotonic()
    way.close()
    way.close()
    assert time.monotonic() - began < 2
    until = time.monotonic() + 2  # a master that was told to end
    while running() - before and time.monotonic() < until:
        time.sleep(0.02)
    assert running() - before == set()
    for channel in channels:
        channel.close()


# -- lost connections -------------------------------------------------------------------------------------------


def outcomes_of_a_cut(way, cut) -> dict[str, tuple[type, float]]:
    """What a command, a stream down, a stream up and a silent channel meet, and how many seconds after the cut."""
    outcomes, cut_at = {}, []
    down = way.open(["cat", "/dev/zero"], bulk=True)
    up = way.open(["sh", "-c", "cat >/dev/null"], bulk=True)
    silent = way.open(["sleep", "60"])

    def meet(name: str, act) -> None:
        try:
            act()
            outcomes[name] = (type(None), 0.0)
        except Exception as error:
            outcomes[name] = (type(error), time.monotonic() - cut_at[0])

    def pull() -> None:
        while down.read(MIB, timeout=60):
            pass

    def push() -> None:
        while True:
            up.write(bytes(MIB))

    acts = {
        "command": lambda: way.run(["sleep", "60"], timeout=60),
        "stream down": pull,
        "stream up": push,
        "silence": lambda: silent.read(1, timeout=60),
    }
    threads = [threading.Thread(target=meet, args=each, daemon=True) for each in acts.items()]
    for thread in threads:
        thread.start()
    time.sleep(0.7)
    cut_at.append(time.monotonic())
    with cut:
        for thread in threads:
            thread.join(timeout=40)
    for channel in (down, up, silent):
        channel.close()
    return outcomes


def assert_all_lost(outcomes) -> None:
    assert {name: kind for name, (kind, _) in outcomes.items()} == dict.fromkeys(
        ("command", "stream down", "stream up", "silence"), ConnectionLost
    )
    assert max(seconds for _, seconds in outcomes.values()) < SEEN_WITHIN, outcomes


@remote
def test_a_cut_link_is_seen_in_time_and_the_connection_comes_back(door, testhosts, transport):
    way = door(transport, "dev@train")
    way.run(["true"])
    assert_all_lost(outcomes_of_a_cut(way, testhosts.unplugged("train")))
    assert door(transport, "dev@train").run(["echo", "back"]).stdout == b"back\n"


@remote
def test_a_host_that_goes_down_is_a_lost_connection(door, testhosts, transport):
    way = door(transport, "dev@oldpy")
    channel = way.open(["sh", "-c", "echo; exec sleep 60"])
    assert channel.read(1, timeout=30), "the connection is there"
    testhosts.reboot("oldpy")
    with pytest.raises(ConnectionLost) as met:
        channel.read(1, timeout=30)
    assert "unknown" in str(met.value)
    channel.close()


# -- ways in ----------------------------------------------------------------------------------------------------


@pytest.fixture
def configured(testhosts, tmp_path, monkeypatch):
    """configured(text) puts text before the hosts' own configuration and makes that the one in use."""

    def configure(text: str, known_hosts: Path | None = None, key: Path | None = None) -> None:
        base = testhosts.config.read_text()
        if known_hosts is not None:
            base = base.replace(str(testhosts.known_hosts), str(known_hosts))
        if key is not None:
            base = base.replace(f"IdentityFile {testhosts.key}\n", f"IdentityFile {key}\n")
        file = tmp_path / "ssh_config"
        file.write_text(f"{text}\nMatch all\n{base}")
        monkeypatch.setenv("ORCH_SSH_CONFIG", str(file))

    return configure


JUMPS = """
Host one
  HostName {train}
  ProxyJump jump
Host two
  HostName {train}
  ProxyJump dev@jump,root@eval:22
"""


@remote
@pytest.mark.parametrize(("name", "last"), [("one", "jump"), ("two", "eval")])
def test_one_and_two_jumps_lead_there(door, testhosts, configured, transport, name, last):
    configured(JUMPS.format(train=testhosts.address("train")))
    way = door(transport, f"dev@{name}")
    assert way.run(["hostname"]).stdout == b"train\n"
    seen_from = way.run(["sh", "-c", "echo ${SSH_CONNECTION%% *}"]).stdout.decode().strip()
    assert seen_from == testhosts.address(last)


@remote
def test_a_link_cut_behind_the_jump_host_is_seen_in_time(door, testhosts, configured, transport):
    configured(JUMPS.format(train=testhosts.address("train")))
    way = door(transport, "dev@one")
    way.run(["true"])
    assert_all_lost(outcomes_of_a_cut(way, testhosts.unplugged("train", "jump")))


@remote
def test_a_key_that_only_the_agent_holds_logs_in(door, testhosts, configured, transport, tmp_path, monkeypatch):
    socket = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL)
    try:
        while not socket.exists():
            time.sleep(0.01)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
        subprocess.run(["ssh-add", "-q", str(testhosts.key)], check=True)
        configured("", key=tmp_path / "no-such-key")
        assert door(transport, "dev@train").run(["whoami"]).stdout == b"dev\n"
    finally:
        agent.terminate()
        agent.wait(timeout=10)


@remote
def test_a_key_that_is_refused_is_said_with_what_to_type(door, testhosts, configured, transport, tmp_path):
    wrong = tmp_path / "wrong"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(wrong)], check=True)
    configured("", key=wrong)
    with pytest.raises(AuthenticationFailed) as met:
        door(transport, "dev@train")
    assert "dev@train" in met.value.message
    assert "ssh " in met.value.hint


# -- host keys --------------------------------------------------------------------------------------------------


def fingerprint(testhosts, host: str) -> str:
    listed = subprocess.run(
        ["ssh-keygen", "-lf", str(testhosts.state / host / "hostkey.pub")], capture_output=True, text=True, check=True
    )
    return listed.stdout.split()[1]


@pytest.fixture
def known_without(testhosts, tmp_path):
    """known_without(host) is a known_hosts file that lacks it, or has the key of `instead` under its name."""

    def write(host: str, instead: str | None = None) -> Path:
        lines = []
        for line in testhosts.known_hosts.read_text().splitlines():
            names, kind, _ = line.split()
            if names.split(",")[0] != host:
                lines.append(line)
            elif instead is not None:
                other = (testhosts.state / instead / "hostkey.pub").read_text().split()
                lines.append(f"{names} {kind} {other[1]}")
        file = tmp_path / "known_hosts"
        file.write_text("\n".join(lines) + "\n")
        return file

    return write


@remote
def test_an_unknown_host_key_stops_with_its_fingerprint(door, testhosts, configured, known_without, transport):
    file = known_without("train")
    configured("", known_hosts=file)
    with pytest.raises(HostKeyError) as met:
        door(transport, "dev@train")
    assert fingerprint(testhosts, "train") in met.value.message
    assert "ssh " in met.value.hint and "compare" in met.value.hint


@remote
def test_a_changed_host_key_stops_with_both_fingerprints_and_the_line(
    door, testhosts, configured, known_without, transport
):
    file = known_without("train", instead="eval")
    configured("", known_hosts=file)
    with pytest.raises(HostKeyError) as met:
        door(transport, "dev@train")
    said = f"{met.value.message} {met.value.hint}"
    assert fingerprint(testhosts, "train") in said
    assert fingerprint(testhosts, "eval") in said
    assert re.search(rf"{file}(:|, line )3\b", said)
    assert "ssh-keygen" in said and "-R" in said


@remote
@pytest.mark.parametrize("name", ["one", "two"])
def test_the_host_keys_of_jump_hosts_are_checked_whatever_the_configuration_says(
    door, testhosts, configured, known_without, transport, name
):
    file = known_without("jump")
    before = file.read_text()
    configured(
        "Host jump\n  StrictHostKeyChecking no\n" + JUMPS.format(train=testhosts.address("train")), known_hosts=file
    )
    with pytest.raises(HostKeyError) as met:
        door(transport, f"dev@{name}")
    assert fingerprint(testhosts, "jump") in met.value.message
    assert file.read_text() == before


# -- no way in --------------------------------------------------------------------------------------------------


@remote
def test_each_reason_not_to_be_connected_has_its_sentence(door, testhosts, transport):
    patient = Timeouts(connect=2, dead=4, heartbeat=1)
    sentences = {}
    for target in (f"{testhosts.address('train')}:23", f"{testhosts.network}.99", "no-such-name.invalid"):
        began = time.monotonic()
        with pytest.raises(HostUnreachable) as met:
            door(transport, target, patient)
        assert time.monotonic() - began < 6
        sentences[target] = met.value.message
        assert met.value.hint
    refused, silent, nameless = sentences.values()
    assert "refuses" in refused
    assert "did not answer" in silent or "does not answer" in silent or "route" in silent or "reached" in silent
    assert "address" in nameless or "name" in nameless


# -- on a host that trains ----------------------------------------------------------------------------------------


@remote
@pytest.mark.parametrize("user", ["dev", "fishy", "cshy", "root"])
def test_on_a_host_that_trains_a_command_begins_at_the_lowest_priority(testhosts, transport: str, user: str):
    host = Host(name="train", ssh=f"{user}@train", roles=frozenset({"train"}), transport=transport)
    connection = connect(host, QUICK, interactive=False)
    try:
        for _ in range(10):  # the kernel takes ten of these writes a second from all users, and other tests write too
            done = connection.run(["/bin/sh", "-c", "nice; cat /proc/self/autogroup; exit 3"])
            told = done.stdout.decode().split()
            if told[1:] == [] or told[-1] == "19":
                break
        killed = connection.run(["/bin/sh", "-c", "kill -9 $$"])
        missing = connection.run(["/nowhere/python3", "-c", "pass"])
    finally:
        connection.close()
    assert (done.exit, told[0], done.stderr) == (3, "19", b"")
    assert told[1:] == [] or told[-2:] == ["nice", "19"]
    assert killed.exit == -9
    assert missing.exit == 127 and b"/nowhere/python3" in missing.stderr
