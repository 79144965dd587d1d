"""What only the OpenSSH transport promises: masters of the user, asking once, and ssh's configuration as it is."""

import os
import pty
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from orchestrator.errors import AuthenticationFailed
from orchestrator.model import Host, Timeouts
from orchestrator.ssh.arguments import ssh_argv
from orchestrator.ssh.choose import Connections, connect
from orchestrator.ssh.resolve import resolve

pytestmark = pytest.mark.hosts

QUICK = Timeouts(connect=6, dead=4, heartbeat=1)


def host(target: str, transport: str = "auto") -> Host:
    return Host(name=target, ssh=target, roles=frozenset({"eval"}), transport=transport)


@pytest.fixture
def configured(testhosts, tmp_path, monkeypatch):
    """configured(text) puts text before the hosts' own configuration; sockets get a folder of their own."""
    with tempfile.TemporaryDirectory(prefix="rt", dir="/tmp") as sockets:
        monkeypatch.setenv("XDG_RUNTIME_DIR", sockets)
        file = tmp_path / "ssh_config"

        def configure(text: str, *, batch: bool = True) -> Path:
            base = testhosts.config.read_text()
            file.write_text(f"{text}\nMatch all\n{base if batch else base.replace('BatchMode yes', 'BatchMode no')}")
            monkeypatch.setenv("ORCH_SSH_CONFIG", str(file))
            return file

        yield configure
        for path in Path(sockets).rglob("*"):
            subprocess.run(["ssh", "-S", path, "-O", "exit", "x"], capture_output=True)


def test_a_stock_configuration_gives_fabric(testhosts):
    with Connections(QUICK) as connections:
        way = connections.to(host("dev@train"))
        assert way.transport == "fabric"
        assert way.why
        assert way.run(["whoami"]).stdout == b"dev\n"


def test_a_master_that_the_user_has_open_is_used_and_left_open(testhosts, configured):
    own = Path(os.environ["XDG_RUNTIME_DIR"]) / "own"
    file = configured(f"Host train\n  ControlPath {own}")
    subprocess.run(["ssh", "-F", file, "-M", "-f", "-N", "dev@train"], check=True)
    testhosts.sh("train", "mv /home/dev/.ssh/authorized_keys /home/dev/.ssh/away")  # nobody gets in but over it
    try:
        way = connect(host("dev@train"), QUICK, interactive=False)
        assert way.transport == "openssh"
        assert "ControlMaster" in way.why
        assert way.run(["whoami"]).stdout == b"dev\n"
        channel = way.open(["cat"], bulk=True)
        channel.write(b"over the same\n")
        assert channel.read(100, timeout=10) == b"over the same\n"
        channel.close()
        way.close()
    finally:
        testhosts.sh("train", "mv /home/dev/.ssh/away /home/dev/.ssh/authorized_keys")
    alive = subprocess.run(["ssh", "-F", file, "-O", "check", "dev@train"], capture_output=True)
    assert alive.returncode == 0
    subprocess.run(["ssh", "-F", file, "-O", "exit", "dev@train"], check=True, capture_output=True)


ASK = """
import sys
from orchestrator.model import Host, Timeouts
from orchestrator.ssh.choose import connect
way = connect(Host(name="dev@train", ssh="dev@train", roles=frozenset()), Timeouts(), interactive=True)
print("transport", way.transport, way.run(["whoami"]).stdout.decode(), flush=True)
way.close()
"""


def at_a_terminal(answer: bytes, seconds: float = 20) -> str:
    """What a person sees who types `answer` when something is asked for."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ["PYTHONPATH"] = os.getcwd()
        os.execv(sys.executable, [sys.executable, "-c", ASK])
    seen, until = b"", time.monotonic() + seconds
    try:
        while time.monotonic() < until and select.select([terminal], [], [], until - time.monotonic())[0]:
            try:
                seen += os.read(terminal, 4096)
            except OSError:  # the other side is gone
                break
            if seen.rstrip().endswith(b":") and answer:
                os.write(terminal, answer + b"\n")
                answer = b""
    finally:
        os.close(terminal)
        os.waitpid(child, 0)
    return seen.decode()


@pytest.fixture
def locked_key(testhosts, tmp_path, configured):
    """A key with a passphrase is the only one that logs in as dev on train."""
    key = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "open sesame", "-f", str(key)], check=True)
    file = "/home/dev/.ssh/authorized_keys"
    testhosts.sh("train", f"cp -p {file} {file}.kept; echo '{key.with_suffix('.pub').read_text().strip()}' > {file}")
    text = f"Host train\n  IdentityFile {key}\n  IdentitiesOnly yes"
    yield configured(text, batch=False)
    testhosts.sh("train", f"mv {file}.kept {file}")


def test_a_passphrase_is_asked_once_at_a_terminal_and_the_connection_is_kept(locked_key):
    first = at_a_terminal(b"open sesame")
    assert "passphrase for key" in first
    assert "transport openssh dev" in first
    second = at_a_terminal(b"")
    assert "passphrase" not in second
    assert "transport openssh dev" in second


def test_a_passphrase_without_a_terminal_is_a_failed_log_in_with_what_to_type(locked_key):
    for transport in ("auto", "openssh"):
        with pytest.raises(AuthenticationFailed) as met:
            connect(host("dev@train", transport), QUICK, interactive=False)
        assert met.value.code == 4
        assert "ssh " in met.value.hint and "dev@train" in met.value.hint


def test_nothing_of_the_configuration_but_the_way_there_is_carried_out(testhosts, configured, tmp_path):
    trace = tmp_path / "trace"
    configured(
        f"Host train\n  RemoteCommand echo wrong\n  RequestTTY force\n  LocalForward 127.0.0.1:18 127.0.0.1:22\n"
        f"  PermitLocalCommand yes\n  LocalCommand touch {trace}\n  ForwardAgent yes\n  LogLevel QUIET"
    )
    way = connect(host("dev@train", "openssh"), QUICK, interactive=False)
    answer = way.run(["sh", "-c", "echo right; test -t 0 || echo no terminal; echo agent:$SSH_AUTH_SOCK"])
    way.close()
    assert answer.stdout == b"right\nno terminal\nagent:\n"
    assert answer.stderr == b""
    assert not trace.exists()


def test_fast_algorithms_come_first_only_where_nobody_chose_any(testhosts, configured):
    plain = ssh_argv(resolve("train"), QUICK, "true")
    configured("Host train\n  Ciphers aes256-ctr\n  KexAlgorithms ecdh-sha2-nistp256")
    chosen = ssh_argv(resolve("train"), QUICK, "true")
    assert any(word.startswith("Ciphers=aes128-gcm@openssh.com,") for word in plain)
    assert any(word.startswith("KexAlgorithms=") for word in plain)
    assert not [word for word in chosen if word.startswith(("Ciphers=", "KexAlgorithms="))]


def test_a_start_that_sshd_drops_is_tried_again(testhosts, configured):
    changes = "s/^Port 22/Port 2222/; s/^MaxStartups.*/MaxStartups 1:100:1/; s,/run/sshd.pid,/run/few.pid,"
    testhosts.sh("train", f"sed '{changes}' /etc/ssh/sshd_oh > /etc/ssh/few; /usr/sbin/sshd -f /etc/ssh/few")
    with socket.create_connection((testhosts.address("train"), 2222)) as blocker:
        blocker.recv(10)  # the one start that is allowed
        threading.Timer(0.5, blocker.shutdown, [socket.SHUT_RDWR]).start()
        way = connect(host("dev@train:2222", "openssh"), QUICK, interactive=False)
    assert way.run(["whoami"]).stdout == b"dev\n"
    way.close()
    testhosts.sh("train", "kill $(cat /run/few.pid)")
