"""This machine as a host (`transport: local`)."""

from __future__ import annotations

import os
from collections.abc import Sequence

from orchestrator.errors import ConfigError
from orchestrator.model import Host, Timeouts
from orchestrator.ssh import lowest, process
from orchestrator.ssh.connection import Channel, Completed

START = 'exec "$@"'
"""A missing command then ends with 127 and a word on stderr, as it does over ssh."""


class LocalConnection:
    """A Connection whose commands are child processes, each in a session of its own.

    Where the host has a `root`, that is the commands' working folder and HOME; absolute paths are this machine's.
    """

    transport = "local"
    why = "transport: local"

    def __init__(self, host: Host, timeouts: Timeouts) -> None:
        if host.root is not None and not host.root.is_dir():
            raise ConfigError(
                f"{host.name}: its root {host.root} is not a folder", hint=f"mkdir -p {host.root}", host=host.name
            )
        self.host = host.name
        self._root = host.root
        self._start = ("/bin/sh", "-c", lowest.before(host) + START, "sh")
        self._timeouts = timeouts
        self._children = process.Children()

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        """See Connection.run. A command that is out of time is ended."""
        status, stdout, stderr = process.run(
            self._children,
            [*self._start, *argv],
            stdin=stdin,
            timeout=timeout,
            judge=process.as_they_are,
            env=self._environment(),
            cwd=self._root,
        )
        return Completed(argv=tuple(argv), exit=status, stdout=stdout, stderr=stderr)

    def open(self, argv: Sequence[str], *, bulk: bool = False) -> Channel:
        """See Connection.open."""
        child = self._children.start([*self._start, *argv], env=self._environment(), cwd=self._root)
        return process.ProcessChannel(child, argv)

    def close(self) -> None:
        """End the commands that this connection started and that still run. What they detached lives on."""
        self._children.end_all()

    def _environment(self) -> dict[str, str] | None:
        return None if self._root is None else {**os.environ, "HOME": str(self._root)}
