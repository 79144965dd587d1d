"""The verb `ship`: a checkpoint's bytes from the training box to the evaluation host, hash-checked, renamed last.

The receiver says which chunks it lacks, the sender sends those, until none is missing. So a shipment that was cut goes
on where it ended, whichever way it goes: from box to box, through a tunnel of this machine, or over this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from orchestrator import routes
from orchestrator.errors import OrchError, TornCheckpoint, TransferError
from orchestrator.model import Checkpoint, Host, Job, Route, Timeouts, TransferName
from orchestrator.ssh import resolve
from orchestrator.ssh.agent import Conversation, Role, ask
from orchestrator.ssh.connection import Connection
from orchestrator.ssh.fleet import on_each
from orchestrator.ssh.listening import Listening
from orchestrator.ssh.onekey import OneUseKey, trusted_lines
from orchestrator.ssh.resolve import Settings
from orchestrator.ssh.tunnel import Tunnel

WANTED = frozenset({"ready", "opened", "missing"})


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


# -- which way -----------------------------------------------------------------------------------------------------


def ways(source: End, target: End, transfer: TransferName, timeouts: Timeouts) -> routes.Ways:
    """Ask both ends, at the same time, how they see each other. Raises what reaching them raises."""
    settings = target.settings
    keys = settings is not None and source.host.transport != "local" and transfer != "relay"
    place = (settings.hostname, settings.port) if settings is not None else None
    straight = settings is not None and not settings.hops and not settings.one("proxycommand")
    answers: list[Mapping[str, Any]] = [{}, {}]
    if keys:
        outcomes = on_each([target, source], lambda end: _reach(end, [place] if end is source else [], timeouts))
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
        answers = [outcome.value or {} for outcome in outcomes]
    return routes.Ways(
        source=source.host,
        target=target.host,
        from_target=answers[0],
        from_source=answers[1],
        place=place,
        straight=straight,
        openssh=settings is not None and settings.source == "openssh",
        trusted=settings is not None and keys and bool(trusted_lines(settings)),
    )


def _reach(end: End, places: Sequence[tuple[str, int] | None], timeouts: Timeouts) -> dict[str, Any]:
    args = {"places": [list(place) for place in places if place is not None]}
    return ask(end.connection, end.host, "reach", args, role=end.role, timeouts=timeouts)


# -- shipping ------------------------------------------------------------------------------------------------------


def ship(
    checkpoint: Checkpoint,
    job: Job,
    source: End,
    target: End,
    timeouts: Timeouts,
    on_bytes: Callable[[int, int], None],
    on_trouble: Callable[[str], None],
    *,
    choice: Sequence[Route],
    layout: str | None,
    limit_rate: int | None = None,
) -> dict[str, Any]:
    """Bring what the job needs of the checkpoint; what arrives is a Checkpoint there, or nothing is.

    `choice` are the routes to try in order; `on_trouble` hears why one was given up. `on_bytes(done, total)` is called
    as bytes arrive. Returns the sender's account: bytes, what was sent, stripped prefixes ... Raises TornCheckpoint
    where a record was damaged, TransferError when the source changed or bytes did not arrive, ConnectionLost, Refused
    (no space).
    """
    keyed = any(route.kind != "relay" for route in choice)
    settings = target.settings
    key = OneUseKey.make() if keyed and settings is not None else None
    question: dict[str, Any] = {
        "root": checkpoint.root,
        "path": checkpoint.path,
        "ship": job.ship,
        "model_key": job.model_key,
        "identity": checkpoint.identity,
        "limit_rate": limit_rate,
        "layout": layout,
    }
    if key is not None and settings is not None:
        question["credentials"] = key.credentials(settings)
    with _asked(source, "send", question, timeouts) as sender:
        announced = next(sender.events())
        if not isinstance(announced, dict):
            raise TransferError("the training box sent bytes before their sizes", host=source.name)
        asked = _receive_question(checkpoint, target.host, announced)
        asked["door"] = key.door(target.host) if key is not None else None
        with _asked(target, "receive", asked, timeouts) as receiver:
            heard = Listening(receiver, WANTED, lambda said: on_bytes(said["received"], said["total"]))
            ready = heard.expect("ready")
            if ready is None:
                return announced  # somebody else has brought it meanwhile
            shipment = _Shipment(source, target, sender, receiver, heard, timeouts)
            try:
                shipment.bring(ready["missing"], choice, on_trouble)
            except TornCheckpoint:
                shipment.drop()
                raise
            sender.tell({"missing": []})
            account = sender.result()
            receiver.tell({"sent": account["sent"]})
            heard.expect("answer")
    return account


def _asked(end: End, question: str, args: Mapping[str, Any], timeouts: Timeouts) -> Conversation:
    return Conversation(end.connection, end.host, question, args, role=end.role, timeouts=timeouts, bulk=True)


def _receive_question(checkpoint: Checkpoint, host: Host, announced: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "workdir": host.workdir,
        "identity": checkpoint.identity,
        "files": announced["files"],
        "chunk": announced["chunk"],
        "plan": announced["plan"],
        "keep_free": host.keep_free,
        "keys": host.one_use_keys and host.transport != "local",
        "meta": {
            "step": checkpoint.step,
            "source": f"{checkpoint.host}:{checkpoint.root}/{checkpoint.path}",
            "entry": _entry(announced["files"]),
        },
    }


def _entry(files: Sequence[Mapping[str, object]]) -> str:
    """What stands for the checkpoint on the harness' command line: its only file, else its folder."""
    return str(files[0]["path"]) if len(files) == 1 else ""


@dataclass(frozen=True, slots=True)
class _Shipment:
    """Both ends in conversation, and what they say to each other through us."""

    source: End
    target: End
    sender: Conversation
    receiver: Conversation
    heard: Listening
    timeouts: Timeouts

    def bring(self, missing: list[list[int]], choice: Sequence[Route], on_trouble: Callable[[str], None]) -> None:
        """Send what is missing by the first route that brings it. Raises TransferError where none does."""
        trouble = "there is no way"
        for route in choice:
            if not missing:
                return
            try:
                with self._opened(route) as way:
                    missing, trouble = self._rounds(missing, way)
            except _NoWay as error:
                trouble = str(error)
            if missing and route is not choice[-1]:
                on_trouble(f"{route.kind}: {trouble}; going on another way")
        if missing:
            raise TransferError(f"{choice[-1].kind if choice else 'transfer'}: {trouble}", hint="run the command again")

    def drop(self) -> None:
        """Let the receiver forget what came: it is no checkpoint."""
        self.receiver.tell({"drop": True})
        with suppress(OrchError):
            while self.heard.expect("answer") is None:
                pass

    @contextmanager
    def _opened(self, route: Route) -> Iterator[dict[str, Any]]:
        """The route made ready: what the sender needs to know of it. Raises _NoWay."""
        with ExitStack() as open_ways:
            if route.kind == "tunnel":
                route = replace(route, places=self._tunnels(open_ways))
            if route.kind == "relay":
                yield {"kind": "relay"}
                return
            self.receiver.tell({"open": [route.source]})
            opened = self.heard.expect("opened")
            if "error" in opened:
                raise _NoWay(f"{self.target.name}: {opened['error']}")
            settings = self.target.settings
            assert settings is not None
            places = [list(place) for place in route.places]
            yield {"kind": "ssh", "places": places, "user": settings.user, "lanes": route.lanes}

    def _tunnels(self, open_ways: ExitStack) -> tuple[tuple[str, int], ...]:
        here, there = self.source.settings, self.target.settings
        assert here is not None and there is not None
        place = (there.hostname, there.port)
        try:
            found = [
                open_ways.enter_context(Tunnel(self.source.host, here, place, self.timeouts))
                for _ in range(routes.TUNNELS)
            ]
        except OrchError as error:
            raise _NoWay(error.message) from None
        return tuple(("127.0.0.1", tunnel.port) for tunnel in found)

    def _rounds(self, missing: list[list[int]], way: Mapping[str, Any]) -> tuple[list[list[int]], str]:
        """Send until nothing is missing, or a round brought nothing. Returns what is missing still, and why."""
        trouble = ""
        while missing:
            ended = self._relayed(missing) if way["kind"] == "relay" else self._sent(missing, way)
            trouble = "; ".join(dict.fromkeys(ended["problems"])) or "nothing of what was sent arrived whole"
            now: list[list[int]] = self.heard.expect("missing")
            if now == missing:
                break
            missing = now
        return missing, trouble

    def _sent(self, missing: list[list[int]], way: Mapping[str, Any]) -> dict[str, Any]:
        self.sender.tell({"missing": missing, "way": way})
        for event in self.sender.events():
            if isinstance(event, dict) and "round" in event:
                self.heard.check()
                self.receiver.tell({"round": "lanes"})
                ended: dict[str, Any] = event["round"]
                return ended
        raise TransferError("the sender ended before the shipment", host=self.source.name)

    def _relayed(self, missing: list[list[int]]) -> dict[str, Any]:
        self.receiver.tell({"round": "relay"})
        self.sender.tell({"missing": missing, "way": {"kind": "relay"}})
        try:
            for event in self.sender.events():
                self.heard.check()
                if isinstance(event, bytes):
                    self.receiver.send(event)
                elif "round" in event:
                    ended: dict[str, Any] = event["round"]
                    return ended
        finally:
            self.receiver.finish_sending()
        raise TransferError("the sender ended before the shipment", host=self.source.name)


class _NoWay(Exception):
    """A route could not be opened."""
