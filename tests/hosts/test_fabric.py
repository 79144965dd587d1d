"""The fabric connection on real hosts: what differs from host to host, goes wrong, or must not be trusted."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import AuthenticationFailed, ConnectionLost, HostKeyError, HostUnreachable, OrchError
from orchestrator.model import Host, Timeouts
from orchestrator.ssh.fabric import FabricConnection
from orchestrator.ssh.resolve import resolve

pytestmark = pytest.mark.hosts

QUICK = Timeouts(connect=3.0, heartbeat=0.5, dead=2.0, question=5.0)
Connect = Callable[..., FabricConnection]


@pytest.fixture(autouse=True)
def no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@pytest.fixture
def connect(testhosts: Any, tmp_path: Path) -> Iterator[Connect]:
    """A function that makes a connection to a target. Its ssh configuration is the hosts' own, and before it the
    given lines, for that target; `keys=False` takes the hosts' key out."""
    made: list[FabricConnection] = []

    def to(target: str, *lines: str, timeouts: Timeouts = QUICK, keys: bool = True) -> FabricConnection:
        config = tmp_path / f"ssh_config_{len(made)}"
        base = testhosts.config.read_text().splitlines()
        kept = [line for line in base if keys or not line.startswith("IdentityFile")]
        alias = target.rpartition("@")[2]
        config.write_text("\n".join([f"Host {alias}", *lines, "Host *", *kept, ""]))
        host = Host(name=target, ssh=target, roles=frozenset())
        settings = resolve(target, config)
        made.append(FabricConnection(host, timeouts, settings=settings, why="a test", config=config))
        return made[-1]

    yield to
    for connection in made:
        connection.close()


@contextmanager
def another_sshd(hosts: Any, host: str, port: int, *options: str) -> Iterator[None]:
    """A second sshd on a host, with options of its own."""
    pidfile = f"/run/sshd-{port}.pid"
    given = " ".join(f"-o '{option}'" for option in (*options, f"PidFile={pidfile}"))
    hosts.sh(
        host, f"/usr/sbin/sshd -f /etc/ssh/sshd_oh -p {port} {given} -E /run/sshd-{port}.log </dev/null >/dev/null 2>&1"
    )
    until = time.monotonic() + 5
    while time.monotonic() < until:
        try:
            socket.create_connection((hosts.address(host), port), 1).close()
            break
        except OSError:
            time.sleep(0.02)
    try:
        yield
    finally:
        hosts.sh(host, f"p=$(cat {pidfile}); kill $p; while kill -0 $p 2>/dev/null; do sleep 0.02; done", check=False)


def key_lines(testhosts: Any, host: str, name: str) -> str:
    """What known_hosts would hold for a host under a name."""
    public = (testhosts.state / host / "hostkey.pub").read_text().split()
    return f"{name} {public[0]} {public[1]}\n"


def fingerprint(public: Path) -> str:
    done = subprocess.run(["ssh-keygen", "-l", "-f", str(public)], capture_output=True, text=True, check=True)
    return done.stdout.split()[1]


def new_key(path: Path, *words: str) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path), *words], check=True)
    return path


# -- commands -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", ["root", "dev", "fishy", "cshy"])
def test_any_argument_reaches_the_command_for_every_login_shell(connect: Connect, user: str) -> None:
    words = ["a b", "it's", '"', "\\", "\\'", "$(id)", "`id`", "!", "\n", "é", "", "*", "~", "-n", "\udcff"]
    done = connect(f"{user}@train").run(["printf", r"%s\0", *words])
    assert done.exit == 0, done.stderr
    assert [os.fsdecode(word) for word in done.stdout.split(b"\0")[:-1]] == words


def test_stdin_stdout_and_stderr_are_whole_and_binary_clean(connect: Connect) -> None:
    blob = os.urandom(3_000_000)
    done = connect("train").run(["sh", "-c", "tee /dev/stderr"], stdin=blob, timeout=30)
    assert (done.exit, done.stdout == blob, done.stderr == blob) == (0, True, True)


def test_an_exit_status_is_a_value_and_a_signal_is_negative(connect: Connect) -> None:
    connection = connect("train")
    assert connection.run(["sh", "-c", "exit 255"]).exit == 255
    assert connection.run(["sh", "-c", "kill -9 $$"]).exit == -9
    assert connection.run(["no-such-program"]).exit == 127


def test_a_command_that_ends_without_reading_is_no_error(connect: Connect) -> None:
    assert connect("train").run(["true"], stdin=b"x" * 5_000_000).exit == 0


def test_a_question_has_a_time_limit_and_the_connection_stays_usable(connect: Connect) -> None:
    connection = connect("train")
    with pytest.raises(TimeoutError, match="it may go on"):
        connection.run(["sleep", "30"], timeout=0.3)
    assert connection.run(["true"]).exit == 0


def test_a_channel_holds_back_pressure_and_drains_stderr_meanwhile(connect: Connect) -> None:
    channel = connect("train").open(["sh", "-c", "head -c 6000000 /dev/zero >&2; exec cat"])
    sent = os.urandom(300_000)
    channel.write(sent)
    channel.close_stdin()
    channel.close_stdin()
    got = b"".join(iter(lambda: channel.read(65536, timeout=20), b""))
    done = channel.wait(5)
    channel.close()
    assert got == sent
    assert (done.exit, len(done.stderr)) == (0, 64 * 1024)


def test_reading_from_a_silent_command_has_a_time_limit_of_its_own(connect: Connect) -> None:
    channel = connect("train").open(["cat"])
    with pytest.raises(TimeoutError):
        channel.read(1, timeout=0.2)
    channel.write(b"x")
    assert channel.read(10, timeout=5) == b"x"
    channel.close()


def test_writing_to_a_command_that_ended_is_a_broken_pipe(connect: Connect) -> None:
    channel = connect("train").open(["true"])
    assert channel.wait(5).exit == 0
    with pytest.raises(BrokenPipeError):
        for _ in range(1000):
            channel.write(b"x" * 65536)
    channel.close()


def test_closing_a_channel_gives_the_command_the_end_of_its_stdin(connect: Connect) -> None:
    connection = connect("train")
    channel = connection.open(["sh", "-c", "cat; touch /tmp/saw-the-end"])
    channel.write(b"x")
    assert channel.read(1, timeout=5) == b"x"
    channel.close()
    until = time.monotonic() + 5
    while connection.run(["test", "-e", "/tmp/saw-the-end"]).exit and time.monotonic() < until:
        time.sleep(0.05)
    assert connection.run(["rm", "/tmp/saw-the-end"]).exit == 0


def test_closing_leaves_no_thread_behind(connect: Connect) -> None:
    before = set(threading.enumerate())
    connection = connect("train", "ProxyJump jump")
    channel = connection.open(["sleep", "30"])
    connection.close()
    channel.close()
    assert set(threading.enumerate()) <= before
    with pytest.raises(ConnectionLost, match="closed"):
        connection.run(["true"])


def test_importing_the_connection_does_not_import_paramiko() -> None:
    code = "import sys, orchestrator.ssh.fabric, orchestrator.ssh.suitability; print('paramiko' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# -- the way there ------------------------------------------------------------------------------------------------


def test_one_and_two_jumps_and_a_proxy_command_lead_there(connect: Connect, testhosts: Any) -> None:
    for way in ("ProxyJump jump", "ProxyJump jump,dev@eval", f"ProxyCommand ssh -F {testhosts.config} -W %h:%p jump"):
        connection = connect("train", way)
        assert connection.run(["hostname"]).stdout == b"train\n", way
        connection.close()


def test_a_jump_host_with_an_unknown_key_is_named_and_not_passed(
    connect: Connect, testhosts: Any, tmp_path: Path
) -> None:
    known = tmp_path / "known"
    known.write_text(key_lines(testhosts, "train", testhosts.address("train")))
    connection = connect("train", "ProxyJump jump", "Host *", f"UserKnownHostsFile {known}")
    with pytest.raises(HostKeyError, match="train: jump host jump: the host key is unknown: ED25519 SHA256:"):
        connection.run(["true"])


def test_what_lies_behind_a_jump_host_and_refuses_is_named(connect: Connect) -> None:
    with pytest.raises(HostUnreachable, match=r"the jump host jump cannot connect to .* port 2299"):
        connect("train", "ProxyJump jump", "Port 2299").run(["true"])


def test_a_proxy_command_that_fails_says_why(connect: Connect) -> None:
    before = set(threading.enumerate())
    with pytest.raises(HostUnreachable, match="the ProxyCommand failed: no luck"):
        connect("train", "ProxyCommand sh -c 'echo no luck >&2; exit 1'").run(["true"])
    assert set(threading.enumerate()) <= before


# -- host keys ----------------------------------------------------------------------------------------------------


def test_an_unknown_key_stops_with_its_fingerprint_and_what_to_type(
    connect: Connect, testhosts: Any, tmp_path: Path
) -> None:
    connection = connect("dev@train", f"UserKnownHostsFile {tmp_path / 'none'}")
    with pytest.raises(HostKeyError) as caught:
        connection.run(["true"])
    assert f"ED25519 {fingerprint(testhosts.state / 'train' / 'hostkey.pub')}" in caught.value.message
    assert caught.value.hint.startswith("ssh -o StrictHostKeyChecking=ask -F ") and "dev@train" in caught.value.hint
    assert caught.value.host == "dev@train"
    assert not (tmp_path / "none").exists()


def test_a_changed_key_stops_with_file_line_both_fingerprints_and_the_command(
    connect: Connect, testhosts: Any, tmp_path: Path
) -> None:
    other = new_key(tmp_path / "other")
    known = tmp_path / "known hosts"
    address = testhosts.address("train")
    words = other.with_suffix(".pub").read_text().split()
    known.write_text(f"# first\n{address} {words[0]} {words[1]}\n")
    with pytest.raises(HostKeyError) as caught:
        connect("train", f'UserKnownHostsFile "{known}"').run(["true"])
    assert "CHANGED" in caught.value.message and f"{known}:2 has" in caught.value.message
    assert fingerprint(other) in caught.value.message
    assert fingerprint(testhosts.state / "train" / "hostkey.pub") in caught.value.message
    assert f"ssh-keygen -R {address} -f '{known}'" in caught.value.hint


KNOWN_HOSTS = {
    "exact": "{address} {key}",
    "hashed": "HASH {address} {key}",
    "wildcard": "10.* {key}",
    "negated": "10.*,!{address} {key}",
    "another type": "{address} {rsa}",
    "another type too": "{address} {rsa}\n{address} {key}",
    "changed": "{address} {other}",
    "changed, and right": "{address} {other}\n{address} {key}",
    "revoked": "{address} {key}\n@revoked * {key}",
    "another one revoked": "{address} {key}\n@revoked * {other}",
    "broken lines": "{address} ssh-ed25519 AAAA\n@what {address} {key}\nnonsense\n{address} {key}",
    "only broken": "{address} ssh-ed25519 AAAA",
    "port": "[{address}]:2222 {key}",
    "authority of another": "@cert-authority *.example.org {other}\n{address} {key}",
    "nothing": "",
}


@pytest.mark.parametrize("port", [22, 2222])
def test_the_verdict_on_a_host_key_is_that_of_ssh(connect: Connect, testhosts: Any, tmp_path: Path, port: int) -> None:
    other, rsa = new_key(tmp_path / "other"), tmp_path / "rsa"
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-N", "", "-f", str(rsa)], check=True)
    keys = {
        "address": testhosts.address("train"),
        "key": key_lines(testhosts, "train", "x")[2:].strip(),
        "other": " ".join(other.with_suffix(".pub").read_text().split()[:2]),
        "rsa": " ".join(rsa.with_suffix(".pub").read_text().split()[:2]),
    }
    known = tmp_path / "known"
    differ = []
    with another_sshd(testhosts, "train", 2222):
        for case, text in KNOWN_HOSTS.items():
            known.write_text(text.removeprefix("HASH ").format(**keys) + "\n")
            if text.startswith("HASH "):
                subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(known)], capture_output=True, check=True)
            connection = connect("train", f"Port {port}", f"UserKnownHostsFile {known}", "GlobalKnownHostsFile none")
            ssh = subprocess.run(["ssh", "-F", str(connection.config), "train", "true"], capture_output=True)
            try:
                mine = connection.run(["true"]).exit
            except HostKeyError:
                mine = 255
            connection.close()
            if mine != ssh.returncode:
                differ.append((case, mine, ssh.returncode))
    assert differ == []


def test_a_host_key_alias_is_looked_for_without_a_port(connect: Connect, testhosts: Any, tmp_path: Path) -> None:
    known = tmp_path / "known"
    known.write_text(key_lines(testhosts, "train", "box"))
    with another_sshd(testhosts, "train", 2222):
        connection = connect("train", "Port 2222", "HostKeyAlias box", f"UserKnownHostsFile {known}")
        assert connection.run(["true"]).exit == 0


def test_a_host_that_shows_only_a_certificate_authority_can_vouch_for_is_refused(
    connect: Connect, testhosts: Any, tmp_path: Path
) -> None:
    known = tmp_path / "known"
    known.write_text("@cert-authority " + key_lines(testhosts, "train", "*"))
    with pytest.raises(HostKeyError, match="transport: openssh"):
        connect("train", f"UserKnownHostsFile {known}").run(["true"])


# -- log-in -------------------------------------------------------------------------------------------------------


@contextmanager
def agent(tmp_path: Path, *keys: Path) -> Iterator[Path]:
    """An ssh-agent that holds keys."""
    path = tmp_path / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 5
        while not path.exists() and time.monotonic() < until:
            time.sleep(0.01)
        for key in keys:
            subprocess.run(["ssh-add", "-q", str(key)], env={**os.environ, "SSH_AUTH_SOCK": str(path)}, check=True)
        yield path
    finally:
        process.terminate()
        process.wait()


def test_the_agent_logs_in_by_its_variable_and_by_identity_agent(
    connect: Connect, testhosts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with agent(tmp_path, testhosts.key) as path:
        assert connect("train", f"IdentityAgent {path}", keys=False).run(["true"]).exit == 0
        monkeypatch.setenv("OTHER_AGENT", str(path))
        assert connect("train", "IdentityAgent $OTHER_AGENT", keys=False).run(["true"]).exit == 0
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        assert connect("train", keys=False).run(["true"]).exit == 0
        with pytest.raises(AuthenticationFailed, match="no key is at hand for user root"):
            connect("train", "IdentityAgent none", "IdentityFile /nowhere", keys=False).run(["true"])


def test_the_key_that_identity_file_names_is_offered_before_the_rest_of_the_agent(
    connect: Connect, testhosts: Any, tmp_path: Path
) -> None:
    """With two tries allowed, ssh logs in although three other keys come first in the agent."""
    others = [new_key(tmp_path / f"other{number}") for number in range(3)]
    with agent(tmp_path, *others, testhosts.key) as path, another_sshd(testhosts, "train", 2222, "MaxAuthTries=2"):
        assert connect("train", "Port 2222", f"IdentityAgent {path}").run(["true"]).exit == 0


def test_too_many_keys_are_called_so_and_identities_only_helps(
    connect: Connect, testhosts: Any, tmp_path: Path
) -> None:
    others = [new_key(tmp_path / f"other{number}") for number in range(4)]
    with agent(tmp_path, *others) as path, another_sshd(testhosts, "train", 2222, "MaxAuthTries=2"):
        with pytest.raises(AuthenticationFailed, match="MaxAuthTries") as caught:
            connect("train", "Port 2222", f"IdentityAgent {path}", keys=False).run(["true"])
        assert "IdentitiesOnly yes" in caught.value.hint
        assert connect("train", "Port 2222", f"IdentityAgent {path}", "IdentitiesOnly yes").run(["true"]).exit == 0


def test_a_certificate_logs_in_from_beside_the_key_from_elsewhere_and_with_the_key_in_the_agent(
    connect: Connect, testhosts: Any, tmp_path: Path
) -> None:
    authority, key = new_key(tmp_path / "ca"), new_key(tmp_path / "key")
    subprocess.run(["ssh-keygen", "-q", "-s", str(authority), "-I", "me", "-n", "root", f"{key}.pub"], check=True)
    testhosts.sh("train", f"echo '{Path(f'{authority}.pub').read_text().strip()}' > /etc/ssh/user_ca")
    with another_sshd(testhosts, "train", 2222, "TrustedUserCAKeys=/etc/ssh/user_ca"):
        beside = connect("train", "Port 2222", f"IdentityFile {key}", keys=False)
        assert beside.run(["true"]).exit == 0
        elsewhere = Path(f"{key}-cert.pub").rename(tmp_path / "elsewhere-cert.pub")
        lines = ["Port 2222", f"IdentityFile {key}", f"CertificateFile {elsewhere}"]
        assert connect("train", *lines, keys=False).run(["true"]).exit == 0
        with agent(tmp_path, key) as path:
            key.unlink()
            assert connect("train", f"IdentityAgent {path}", *lines, keys=False).run(["true"]).exit == 0


def test_a_key_with_a_passphrase_is_named_with_the_command_that_helps(
    connect: Connect, testhosts: Any, tmp_path: Path
) -> None:
    key = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(key)], check=True)
    with pytest.raises(AuthenticationFailed, match="has a passphrase") as caught:
        connect("train", f"IdentityFile {key}", keys=False).run(["true"])
    assert caught.value.hint == f"ssh-add {key}"


def test_a_wrong_key_a_missing_agent_and_an_open_key_file_are_said(
    connect: Connect, testhosts: Any, tmp_path: Path
) -> None:
    wrong, loose = new_key(tmp_path / "wrong"), new_key(tmp_path / "loose")
    loose.chmod(0o644)
    lines = [f"IdentityFile {wrong}", f"IdentityFile {loose}", f"IdentityAgent {tmp_path / 'gone'}"]
    with pytest.raises(AuthenticationFailed) as caught:
        connect("train", *lines, keys=False).run(["true"])
    said = caught.value.message
    assert f"no key was accepted for user root (refused: {wrong})" in said
    assert "the server takes publickey" in said
    assert f"the key agent at {tmp_path / 'gone'} can't be asked" in said
    assert f"{loose} may be read by others" in said


def test_a_host_that_wants_a_password_or_a_second_factor_names_the_command_to_type(
    connect: Connect, testhosts: Any
) -> None:
    with another_sshd(testhosts, "train", 2222, "PubkeyAuthentication=no", "PasswordAuthentication=yes"):
        with pytest.raises(AuthenticationFailed, match="takes only password") as caught:
            connect("train", "Port 2222").run(["true"])
        assert caught.value.hint.startswith("ssh -F ")
    options = ["PasswordAuthentication=yes", "AuthenticationMethods=publickey,password"]
    with (
        another_sshd(testhosts, "train", 2223, *options),
        pytest.raises(AuthenticationFailed, match=r"wants a further step \(password\)"),
    ):
        connect("train", "Port 2223").run(["true"])


# -- what goes wrong ----------------------------------------------------------------------------------------------


def test_each_failure_to_connect_has_its_own_sentence(connect: Connect, testhosts: Any) -> None:
    sentences = {
        ("train", "Port 2299"): "refuses connections",
        ("no-such-host.invalid",): "no address for the name no-such-host.invalid",
        ("192.0.2.77", "BindAddress 127.0.0.1"): "cannot be reached|does not answer|192.0.2.77 port 22: ",
    }
    for (target, *lines), sentence in sentences.items():
        with pytest.raises(HostUnreachable, match=sentence):
            connect(target, *lines).run(["true"])
    with testhosts.unplugged("eval"), pytest.raises(HostUnreachable, match="does not answer within 1 s"):
        connect("eval", timeouts=Timeouts(connect=1.0)).run(["true"])


def test_a_server_that_says_nothing_and_one_that_is_no_sshd_are_told_apart(connect: Connect) -> None:
    before = set(threading.enumerate())
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(HostUnreachable, match="no SSH greeting within 1 s"),
    ):
        connect("127.0.0.1", f"Port {silent.getsockname()[1]}", timeouts=Timeouts(connect=1.0)).run(["true"])
    with socket.create_server(("127.0.0.1", 0)) as web:

        def answer_as_a_web_server() -> None:
            with web.accept()[0] as accepted:
                accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n" * 101)

        answer = threading.Thread(target=answer_as_a_web_server)
        answer.start()
        with pytest.raises(HostUnreachable, match="no SSH server"):
            connect("127.0.0.1", f"Port {web.getsockname()[1]}").run(["true"])
        answer.join()
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("way", ["direct", "jump"])
@pytest.mark.parametrize("doing", ["waiting", "reading", "writing"])
def test_a_cut_link_is_noticed_in_the_middle(connect: Connect, testhosts: Any, way: str, doing: str) -> None:
    jump = ["ProxyJump jump"] if way == "jump" else []
    connection = connect("train", *jump)
    peer = "jump" if way == "jump" else None
    channel = connection.open({"waiting": ["sleep", "60"], "reading": ["yes"], "writing": ["cat"]}[doing])
    if doing == "reading":
        channel.read(1000, timeout=5)
    cut_at = [0.0]

    def cut() -> None:
        time.sleep(0.3)
        cut_at[0] = time.monotonic()
        testhosts.cut("train", peer)

    cutting = threading.Thread(target=cut)
    cutting.start()
    try:
        with pytest.raises(ConnectionLost, match="connection lost, result unknown"):
            if doing == "writing":
                while True:
                    channel.write(bytes(65536))
            elif doing == "reading":
                while True:
                    channel.read(65536)
            channel.wait(30)
        took = time.monotonic() - cut_at[0]
    finally:
        cutting.join()
        testhosts.restore("train", peer)
    channel.close()
    assert took < QUICK.dead + 1.0


def test_a_long_silent_command_on_a_healthy_path_is_not_lost(connect: Connect) -> None:
    for jump in ([], ["ProxyJump jump"]):
        assert connect("train", *jump).run(["sleep", "4"], timeout=20).exit == 0


def test_a_killed_sshd_is_a_lost_connection_and_the_next_question_opens_a_new_one(
    connect: Connect, testhosts: Any
) -> None:
    connection = connect("train")
    channel = connection.open(["sleep", "60"])
    sshd = connection.run(["sh", "-c", "ps -o ppid= -p $PPID"]).stdout.decode().strip()
    testhosts.sh("train", f"kill -KILL {sshd}")
    with pytest.raises(ConnectionLost, match="connection lost, result unknown"):
        channel.wait(10)
    channel.close()
    assert connection.run(["echo", "again"]).stdout == b"again\n"


def test_a_refused_session_is_tried_again_until_one_is_free(connect: Connect, testhosts: Any) -> None:
    with another_sshd(testhosts, "train", 2222, "MaxSessions=2"):
        connection = connect("train", "Port 2222")
        with ThreadPoolExecutor(6) as pool:
            done = list(pool.map(lambda number: connection.run(["sh", "-c", f"sleep 0.1; echo {number}"]), range(6)))
        assert [int(one.stdout) for one in done] == list(range(6))
        held = [connection.open(["cat"]) for _ in range(2)]
        with pytest.raises(HostUnreachable, match="MaxSessions"):
            connection.run(["true"])
        for channel in held:
            channel.close()


def test_a_dropped_start_is_tried_again(connect: Connect, testhosts: Any) -> None:
    with another_sshd(testhosts, "train", 2222, "MaxStartups=2:100:2"):
        connections = [connect("train", "Port 2222", timeouts=Timeouts(connect=15.0)) for _ in range(8)]
        with ThreadPoolExecutor(8) as pool:
            assert [done.exit for done in pool.map(lambda one: one.run(["true"]), connections)] == [0] * 8


def test_a_host_gets_at_most_eight_channels_at_once(connect: Connect) -> None:
    connection = connect("train", timeouts=Timeouts(connect=3.0, question=0.5))
    held = [connection.open(["cat"]) for _ in range(8)]
    with pytest.raises(HostUnreachable, match="8 commands are running there already"):
        connection.open(["cat"])
    held.pop().close()
    assert connection.run(["true"]).exit == 0
    for channel in held:
        channel.close()


def test_bulk_goes_where_the_constructor_says(connect: Connect, testhosts: Any) -> None:
    connection = connect("train")
    asked: list[Any] = []
    bulky = FabricConnection(
        Host(name="train", ssh="train", roles=frozenset()),
        QUICK,
        settings=resolve("train", connection.config),
        why="a test",
        config=connection.config,
        bulk=lambda argv: asked.append(list(argv)) or connection.open(argv),  # type: ignore[func-returns-value]
    )
    channel = bulky.open(["cat"], bulk=True)
    channel.write(b"hello")
    assert channel.read(100, timeout=5) == b"hello"
    assert asked == [["cat"]]
    bulky.close()  # and with it what it opened
    with pytest.raises(BrokenPipeError):
        channel.write(b"x")


def test_without_openssh_the_same_host_is_reached_by_paramikos_reading(
    testhosts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = resolve("train", testhosts.config, openssh=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("ssh") is None
    host = Host(name="train", ssh="train", roles=frozenset())
    connection = FabricConnection(host, QUICK, settings=settings, why="a test", config=testhosts.config)
    try:
        assert connection.run(["hostname"]).stdout == b"train\n"
    finally:
        connection.close()
    lost = tmp_path / "known"
    lost.write_text("")
    unknown = tmp_path / "config"
    unknown.write_text(f"UserKnownHostsFile {lost}\n" + testhosts.config.read_text())
    refused = FabricConnection(
        host, QUICK, settings=resolve("train", unknown, openssh=False), why="a test", config=unknown
    )
    with pytest.raises(OrchError, match="the host key is unknown"):
        refused.run(["true"])
    refused.close()


def test_a_connection_that_was_cut_while_it_rested_is_replaced_by_the_next_question(
    testhosts: Any, connect: Connect
) -> None:
    """As after a laptop's sleep: nothing had begun, so nothing is lost."""
    connection = connect("eval", timeouts=Timeouts(connect=2.0, heartbeat=0.5, dead=4.0))
    assert connection.run(["true"]).exit == 0
    with testhosts.unplugged("eval"):
        time.sleep(5)  # longer than `dead`: a resting connection is not asked so often
        with pytest.raises(HostUnreachable, match="does not answer"):
            connection.run(["true"])
    assert connection.run(["true"]).exit == 0
