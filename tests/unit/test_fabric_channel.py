"""The fabric connection against a server that is not OpenSSH: asyncssh, in this process, needs no root."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import asyncssh
import pytest

from orchestrator.errors import ConnectionLost
from orchestrator.model import Host, Timeouts
from orchestrator.ssh.fabric import FabricConnection
from orchestrator.ssh.resolve import resolve


async def behave(process: asyncssh.SSHServerProcess[bytes]) -> None:
    """What the command's last word says: print and end without EOF, or drop the connection after the exit status."""
    word = str(process.command).split()[-1]
    process.stdout.write(b"hello\n" * 1000)
    if word == "end":
        process.exit(3)
    elif word == "drop":
        process.channel.exit(0)
        process.get_extra_info("connection").abort()
    elif word == "die":
        process.get_extra_info("connection").abort()


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[FabricConnection]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    host_key, key = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
    key.write_private_key(tmp_path / "key")
    (tmp_path / "key").chmod(0o600)

    async def serve() -> asyncssh.SSHAcceptor:
        return await asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[host_key],
            authorized_client_keys=asyncssh.import_authorized_keys(key.export_public_key().decode()),
            process_factory=behave,
            encoding=None,
        )

    server = asyncio.run_coroutine_threadsafe(serve(), loop).result(10)
    port = server.get_port()
    (tmp_path / "known").write_text(f"[127.0.0.1]:{port} {host_key.export_public_key().decode()}")
    config = tmp_path / "config"
    config.write_text(
        f"Host box\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {tmp_path}/key\n  IdentityAgent none\n"
        f"  UserKnownHostsFile {tmp_path}/known\n"
    )
    timeouts = Timeouts(connect=5.0, heartbeat=0.5, dead=2.0)
    host = Host(name="box", ssh="box", roles=frozenset())
    made = FabricConnection(host, timeouts, settings=resolve("box", config), why="a test", config=config)
    yield made
    made.close()
    loop.call_soon_threadsafe(server.close)
    asyncio.run_coroutine_threadsafe(server.wait_closed(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    loop.close()


def test_a_server_that_closes_without_an_eof_has_still_told_the_result(connection: FabricConnection) -> None:
    for _ in range(5):
        done = connection.run(["x", "end"], timeout=10)
        assert (done.exit, done.stdout) == (3, b"hello\n" * 1000)


@pytest.mark.parametrize("how", ["drop", "die"])
def test_a_connection_that_goes_away_is_lost_even_after_an_exit_status(connection: FabricConnection, how: str) -> None:
    with pytest.raises(ConnectionLost, match="connection lost, result unknown"):
        connection.run(["x", how], timeout=10)
    assert connection.run(["x", "end"], timeout=10).exit == 3
