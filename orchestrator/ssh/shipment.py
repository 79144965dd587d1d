"""Both ends of a shipment in conversation, and what they say to each other through us, until nothing is missing.

Bytes pass here only where the route is the relay; else a round is a few words, and the boxes do the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import OrchError, TransferError
from orchestrator.model import Host, Role, Route, Timeouts
from orchestrator.ssh import resolve
from orchestrator.ssh.agent import Conversation
from orchestrator.ssh.connection import Connection
from orchestrator.ssh.listening import Listening
from orchestrator.ssh.resolve import Settings
from orchestrator.ssh.tunnel import Tunnel

WANTED = frozenset({"ready", "opened", "missing"})
TUNNELS = 2
"""connections of this machine to the training box, which the shipment's own share"""
AGAIN = 3
"""how often the last way that is left is tried while its connections bring nothing"""
PAUSE = 2.0
"""seconds between those tries"""
Missing = list[list[int]]
"""first and last number of each run of chunks"""


class NoWay(Exception):
    """No route brought all of it; the text says why the last one did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """One end of a shipment."""

    connection: Connection
    host: Host
    role: Role

    @property
    def name(self) -> str:
        """For messages."""
        return self.host.name

    @property
    def settings(self) -> Settings | None:
        """How ssh reaches it; None for this machine itself."""
        return None if self.host.transport == "local" else resolve.resolve(self.host.ssh)

    def asked(self, question: str, args: Mapping[str, Any], timeouts: Timeouts, *, bulk: bool) -> Conversation:
        """A question put to its agent."""
        return Conversation(self.connection, self.host, question, args, role=self.role, timeouts=timeouts, bulk=bulk)


@dataclass(frozen=True, slots=True)
class Shipment:
    """Two agents that are ready: one holds the checkpoint open, one says what it lacks of it."""

    source: End
    target: End
    sender: Conversation
    receiver: Conversation
    heard: Listening
    """what the receiver says"""
    timeouts: Timeouts

    def bring(self, missing: Missing, choice: Sequence[Route], on_trouble: Callable[[str], None]) -> dict[str, Any]:
        """Send what is missing by the first route that brings it, and have it put in place.

        Returns the sender's account. Raises NoWay, or what an agent reports.
        """
        for route in choice:
            last = route is choice[-1]
            if not missing:
                break
            try:
                with self._opened(route) as way:
                    missing, trouble = self._rounds(missing, way, AGAIN if last else 1)
            except NoWay as error:
                trouble = str(error)
            if missing and last:
                raise NoWay(f"{route.kind}: {trouble}")
            if missing:
                on_trouble(f"{route.kind}: {trouble}; going on another way")
        self.sender.tell({"missing": []})
        account = self.sender.result()
        self.receiver.tell({"sent": account["sent"]})
        self.heard.expect("answer")
        return account

    def drop(self) -> None:
        """Let the receiver forget what came: it is no checkpoint."""
        self.receiver.tell({"drop": True})
        with suppress(OrchError):
            while self.heard.expect("answer") is None:
                pass

    @contextmanager
    def _opened(self, route: Route) -> Iterator[dict[str, Any]]:
        """The route made ready: what the sender needs to know of it. Raises NoWay."""
        if route.kind == "relay":
            yield {"kind": "relay"}
            return
        with ExitStack() as tunnels:
            places = route.places if route.kind == "direct" else self._tunnels(tunnels)
            self.receiver.tell({"open": [route.source]})
            opened = self.heard.expect("opened")
            if "error" in opened:
                raise NoWay(f"{self.target.name}: {opened['error']}")
            settings = self.target.settings
            assert settings is not None
            yield {
                "kind": "ssh",
                "places": [list(place) for place in places],
                "user": settings.user,
                "lanes": route.lanes,
            }

    def _tunnels(self, tunnels: ExitStack) -> tuple[tuple[str, int], ...]:
        here, there = self.source.settings, self.target.settings
        assert here is not None and there is not None
        place = (there.hostname, there.port)
        try:
            found = [
                tunnels.enter_context(Tunnel(self.source.host, here, place, self.timeouts)) for _ in range(TUNNELS)
            ]
        except OrchError as error:
            raise NoWay(error.message) from None
        return tuple(("127.0.0.1", tunnel.port) for tunnel in found)

    def _rounds(self, missing: Missing, way: Mapping[str, Any], tries: int) -> tuple[Missing, str]:
        """Send until nothing is missing, or so many rounds in a row brought nothing because connections failed.

        Returns what is missing still, and why.
        """
        failed = 0
        while missing:
            ended = self._relayed(missing) if way["kind"] == "relay" else self._sent(missing, way)
            now: Missing = self.heard.expect("missing")
            if now != missing:
                missing, failed = now, 0
                continue
            failed += 1
            if not ended["problems"]:
                return missing, "nothing of what was sent arrived whole"
            if failed == tries:
                said = "; ".join(dict.fromkeys(ended["problems"]))
                return missing, said + (f", tried {failed} times" if failed > 1 else "")
            time.sleep(PAUSE)
        return missing, ""

    def _sent(self, missing: Missing, way: Mapping[str, Any]) -> dict[str, Any]:
        self.sender.tell({"missing": missing, "way": way})
        for event in self.sender.events():
            if isinstance(event, dict) and "round" in event:
                self.heard.check()
                self.receiver.tell({"round": "lanes"})
                ended: dict[str, Any] = event["round"]
                return ended
        raise TransferError("the sender ended before the shipment", host=self.source.name)

    def _relayed(self, missing: Missing) -> dict[str, Any]:
        self.receiver.tell({"round": "relay"})
        self.sender.tell({"missing": missing, "way": {"kind": "relay"}})
        try:
            for event in self.sender.events():
                self.heard.check()
                if isinstance(event, bytes):
                    if not self.receiver.send(event):
                        self.heard.expect("answer")  # raises what ended it; the rest is not read from the training box
                        raise TransferError(f"{self.target.name} stopped taking bytes", host=self.target.name)
                elif "round" in event:
                    ended: dict[str, Any] = event["round"]
                    return ended
        finally:
            self.receiver.finish_sending()
        raise TransferError("the sender ended before the shipment", host=self.source.name)
