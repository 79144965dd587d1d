"""Staying with a run however often the way to its host is gone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from orchestrator.actions import launched, runs
from orchestrator.actions.runs import Reading
from orchestrator.answers import Json
from orchestrator.errors import AuthenticationFailed, ConnectionLost, HostUnreachable, NothingToEvaluate
from orchestrator.model import Host, Run, Timeouts
from orchestrator.ssh.choose import Connections

RECONNECTS = 30
"""how often in a row a lost connection is taken up again, with growing pauses (a quarter of an hour)"""


def follow(
    run: Run,
    host: Host,
    connections: Connections,
    timeouts: Timeouts,
    reading: Reading,
    *,
    on_look: Callable[[Json], None],
    warned: Callable[[str], None],
    again: str,
) -> Run:
    """To the end of the run (or of its log, as `reading` says), each byte of the log once.

    A run that its host no longer has is `lost`. Raises ConnectionLost, with `again` as what to type, after a quarter of
    an hour without the host; AuthenticationFailed at once, for trying again would lock the user out.
    """
    attempt = 0

    def looked(look: Json) -> None:
        nonlocal attempt, reading
        attempt, reading = 0, replace(reading, place=look["place"])
        on_look(look)

    while attempt < RECONNECTS:
        try:
            return runs.follow(connections.to(host), host, run.id, reading, timeouts, looked)
        except NothingToEvaluate:
            return launched.gone(run)
        except AuthenticationFailed:
            raise
        except HostUnreachable as error:
            warned(f"{error.message}; run {run.id} goes on, connecting again")
            connections.forget(host)
            time.sleep(min(2.0**attempt, 30.0) * min(1.0, timeouts.dead / 15))
            attempt += 1
    raise ConnectionLost(f"{host.name}: lost contact; run {run.id} may still go on there", hint=again, host=host.name)
