"""What differs between laptops lives in ssh/platform.py alone, and its other branches run here too."""

import ast
import os
import socket
from pathlib import Path

import pytest

from orchestrator.ssh import platform

PACKAGE = Path(platform.__file__).parent.parent
LINUX_OR_MACOS_ONLY = (
    "/proc",
    "/sys/",
    "sys.platform",
    "platform.system",
    "TCP_USER_TIMEOUT",
    "TCP_QUICKACK",
    "TCP_KEEPIDLE",
    "TCP_KEEPALIVE",
    "F_SETPIPE_SZ",
    "SO_PEERCRED",
    "XDG_RUNTIME_DIR",
    "pidfd",
    "memfd_create",
    "prctl",
    "sched_setaffinity",
    "sched_getaffinity",
    "/dev/shm",
    "inotify",
    "splice(",
)


def code_of(file: Path) -> str:
    """A module without its docstrings and comments."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [part for part in body if not _is_text(part)] or [ast.Pass()]
    return ast.unparse(tree)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def test_nothing_but_platform_py_depends_on_the_kind_of_laptop():
    code = {file: code_of(file) for file in PACKAGE.rglob("*.py") if file != Path(platform.__file__)}
    assert len(code) > 10
    found = [
        f"{file.relative_to(PACKAGE)}: {word}"
        for file, text in code.items()
        for word in LINUX_OR_MACOS_ONLY
        if word in text
    ]
    allowed = {
        "ssh/masters.py: XDG_RUNTIME_DIR",  # the hint that names it to a user
        "ssh/bundle.py: SO_PEERCRED",  # in a text that runs on a host
        "ssh/lowest.py: /proc",  # in another one
    }
    assert set(found) <= allowed


@pytest.mark.parametrize("system", ["linux", "darwin", "freebsd"])
def test_a_socket_works_after_it_was_tuned_for_any_system(system):
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        platform.tune_socket(client, 15.0, system=system)
        platform.ack_at_once(client, system=system)
        accepted, _ = server.accept()
        with accepted:
            client.sendall(b"ping")
            assert accepted.recv(4) == b"ping"
        assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_linux_gives_up_on_unacknowledged_bytes_in_time():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        platform.tune_socket(client, 4.0)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 4000


def test_a_socket_that_is_not_tcp_is_left_as_it_is():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        platform.tune_socket(ours, 15.0)


@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_a_pipe_works_after_it_was_enlarged(system):
    reader, writer = os.pipe()
    platform.enlarge_pipe(writer, system=system)
    os.write(writer, b"x")
    assert os.read(reader, 1) == b"x"
    os.close(reader)
    os.close(writer)


def test_the_folder_for_sockets_is_private_and_short(tmp_path_factory):
    short = Path(f"/tmp/rt{os.getpid()}")
    short.mkdir(mode=0o700)
    try:
        folder = platform.runtime_dir(environ={"XDG_RUNTIME_DIR": str(short)}, system="linux")
        assert folder == short / "orch"
        assert folder.stat().st_mode & 0o777 == 0o700
        folder.chmod(0o755)  # as if somebody else had made it
        assert platform.runtime_dir(environ={"XDG_RUNTIME_DIR": str(short)}, system="linux") != folder
    finally:
        (short / "orch").rmdir()
        short.rmdir()


def test_a_folder_that_is_too_long_for_a_socket_is_passed_over(tmp_path):
    long = tmp_path / ("long" * 20)
    long.mkdir()
    folder = platform.runtime_dir(environ={"XDG_RUNTIME_DIR": str(long)}, system="linux")
    assert folder == Path(f"/tmp/orch-{os.geteuid()}")


def test_macos_uses_the_short_folder():
    assert platform.runtime_dir(environ={"XDG_RUNTIME_DIR": "/tmp"}, system="darwin") == Path(
        f"/tmp/orch-{os.geteuid()}"
    )
