"""SSH servers inside this process (asyncssh): a training and an evaluation box for the demo, without root or sshd.

Each box is a folder with its own HOME; commands run as this user through /bin/sh, as sshd would run them through the
login shell. Host keys are real and checked, log-in is by a key made for the occasion, everything is on 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import asyncssh

PIECE = 64 * 1024


class EmbeddedHosts:
    """Boxes by name below a folder. `config` is an ssh_config that knows them, strictly.

    Use as a context manager; leaving it ends the servers and every command that they started.
    """

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.folder = folder
        self.config = folder / "ssh_config"
        self._names = names
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._servers: list[asyncssh.SSHAcceptor] = []
        self._started: set[int] = set()

    def home(self, name: str) -> Path:
        """The box's home folder."""
        return self.folder / name

    def __enter__(self) -> EmbeddedHosts:
        key = asyncssh.generate_private_key("ssh-ed25519")
        key.write_private_key(self.folder / "id_ed25519")
        (self.folder / "id_ed25519").chmod(0o600)
        self._thread.start()
        hosts, known = [], []
        for name in self._names:
            self.home(name).mkdir(exist_ok=True)
            host_key = asyncssh.generate_private_key("ssh-ed25519")
            port = self._do(self._serve(name, host_key, key))
            public = host_key.export_public_key().decode().strip()
            known.append(f"[127.0.0.1]:{port} {public}")
            hosts.append(f"Host {name}\n  HostName 127.0.0.1\n  Port {port}\n")
        (self.folder / "known_hosts").write_text("\n".join(known) + "\n")
        user = os.environ.get("USER") or "demo"
        self.config.write_text(
            f"IdentityFile {self.folder}/id_ed25519\nIdentitiesOnly yes\nIdentityAgent none\n"
            f"UserKnownHostsFile {self.folder}/known_hosts\nGlobalKnownHostsFile /dev/null\n"
            f"StrictHostKeyChecking yes\nUser {user}\n" + "".join(hosts)
        )
        return self

    def __exit__(self, *_: object) -> None:
        for pid in list(self._started):
            try:
                os.killpg(pid, signal.SIGTERM)  # each command leads a session of its own
            except ProcessLookupError:
                pass
        for server in self._servers:
            self._loop.call_soon_threadsafe(server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)

    def _do(self, work: Coroutine[Any, Any, int]) -> int:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    async def _serve(self, name: str, host_key: asyncssh.SSHKey, client_key: asyncssh.SSHKey) -> int:
        async def handle(process: asyncssh.SSHServerProcess[bytes]) -> None:
            await self._run(self.home(name), process)

        allowed = asyncssh.import_authorized_keys(client_key.export_public_key().decode())
        server = await asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[host_key],
            authorized_client_keys=allowed,
            process_factory=handle,
            encoding=None,
            allow_pty=False,
        )
        self._servers.append(server)
        return int(server.get_port())

    async def _run(self, home: Path, process: asyncssh.SSHServerProcess[bytes]) -> None:
        command = process.command or "exec /bin/sh"
        environment = {**os.environ, "HOME": str(home), "PWD": str(home)}
        child = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=home,
            env=environment,
            start_new_session=True,
        )
        assert child.stdin and child.stdout and child.stderr
        self._started.add(child.pid)
        feeding = asyncio.ensure_future(_feed(process.stdin, child.stdin))
        try:
            await asyncio.gather(_pump(child.stdout, process.stdout), _pump(child.stderr, process.stderr))
            status = await child.wait()
            process.exit(status if status >= 0 else 128 - status)
        finally:
            feeding.cancel()
            self._started.discard(child.pid)


async def _feed(source: asyncssh.SSHReader[bytes], sink: asyncio.StreamWriter) -> None:
    """The client's bytes to the command's stdin, until either has had enough; a lost client is an EOF."""
    try:
        while data := await source.read(PIECE):
            sink.write(data)
            await sink.drain()
    except (OSError, asyncssh.Error):
        pass
    finally:
        sink.close()


async def _pump(source: asyncio.StreamReader, sink: asyncssh.SSHWriter[bytes]) -> None:
    """The command's output to the client; once the client is gone it is read and dropped, so the command can end."""
    gone = False
    while data := await source.read(PIECE):
        if not gone:
            try:
                sink.write(data)
                await sink.drain()
            except (OSError, asyncssh.Error):
                gone = True
