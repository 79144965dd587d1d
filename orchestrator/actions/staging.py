"""The verb `ship`: a checkpoint's bytes from the training box to the evaluation host, hash-checked, renamed last.

The receiver says which chunks it lacks, the sender sends those, until none is missing. So a shipment that was cut goes
on where it ended, whichever way it goes: from box to box, through a tunnel of this machine, or over this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator import routes
from orchestrator.errors import Refused, TornCheckpoint, TransferError
from orchestrator.model import Checkpoint, Host, Job, Route, Timeouts, TransferName
from orchestrator.ssh.agent import ask
from orchestrator.ssh.fleet import on_each
from orchestrator.ssh.listening import Listening
from orchestrator.ssh.onekey import OneUseKey, trusted_lines
from orchestrator.ssh.shipment import TUNNELS, WANTED, End, NoWay, Shipment

__all__ = ["End", "choose", "ship", "ways"]
PATIENT = 12.0
"""seconds for the training box to reach the evaluation host where nothing else may be taken"""


def choose(
    source: End, target: End, transfer: TransferName, timeouts: Timeouts, limit_rate: int | None = None
) -> tuple[Route, ...]:
    """The ways that a shipment may take, the best first. Raises Refused where there is none, saying what was tried."""
    found, why_not = routes.choose(transfer, ways(source, target, transfer, timeouts), limit_rate)
    if not found:
        hint = "transfer: auto in hosts.yaml takes what there is"
        raise Refused(f"no way to ship: {'; '.join(why_not)}", hint=hint, host=target.name)
    return found


def ways(source: End, target: End, transfer: TransferName, timeouts: Timeouts) -> routes.Ways:
    """Ask both ends, at the same time, how they see each other. Raises what reaching them raises."""
    settings = target.settings
    keys = settings is not None and source.host.transport != "local" and transfer != "relay"
    place = (settings.hostname, settings.port) if settings is not None else None
    answers: list[Mapping[str, Any]] = [{}, {}]
    if keys:
        places = [place] if place is not None and transfer != "tunnel" else []
        patience = PATIENT if transfer == "direct" else None
        outcomes = on_each(
            [target, source], lambda end: _reach(end, places if end is source else [], patience, timeouts)
        )
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
        answers = [outcome.value or {} for outcome in outcomes]
    return routes.Ways(
        source=source.host,
        target=target.host,
        from_target=answers[0],
        from_source=answers[1],
        straight=settings is not None and not settings.hops and not settings.one("proxycommand"),
        openssh=settings is not None and settings.source == "openssh",
        trusted=settings is not None and keys and bool(trusted_lines(settings)),
        tunnels=TUNNELS,
    )


def _reach(end: End, places: Sequence[tuple[str, int]], patience: float | None, timeouts: Timeouts) -> dict[str, Any]:
    args = {"places": [list(place) for place in places], "patience": patience}
    return ask(end.connection, end.host, "reach", args, role=end.role, timeouts=timeouts)


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
    training: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Bring what the job needs of the checkpoint; what arrives is a Checkpoint there, or nothing is.

    `choice` are the routes to try in order, at least one; `on_trouble` hears why one was given up. `on_bytes(done,
    total)` is called as bytes arrive. `training` is the process on the training box ({identity, ranks}): the sender
    goes slower where it feels that. Returns the sender's account: bytes, what was sent, stripped prefixes ... Raises
    TornCheckpoint where a record was damaged, TransferError when the source changed or bytes did not arrive,
    ConnectionLost, Refused (no space).
    """
    question = {
        "root": checkpoint.root,
        "path": checkpoint.path,
        "ship": job.ship,
        "model_key": job.model_key,
        "identity": checkpoint.identity,
        "limit_rate": limit_rate,
        "layout": layout,
        "training": training,
    }
    keyed = [route for route in choice if route.kind != "relay"]
    relays = [route for route in choice if route.kind == "relay"]

    def attempt(some: Sequence[Route]) -> dict[str, Any]:
        return _attempt(checkpoint, question, source, target, timeouts, some, on_bytes, on_trouble)

    try:
        if keyed and relays:
            try:
                return attempt(keyed)
            except NoWay as error:
                on_trouble(f"{error}; going on through this machine")
        return attempt(relays or keyed)
    except NoWay as error:
        hint = "run the command again: it goes on where this one ended"
        raise TransferError(str(error), hint=hint, host=target.name) from None


def _attempt(
    checkpoint: Checkpoint,
    question: Mapping[str, Any],
    source: End,
    target: End,
    timeouts: Timeouts,
    choice: Sequence[Route],
    on_bytes: Callable[[int, int], None],
    on_trouble: Callable[[str], None],
) -> dict[str, Any]:
    """By one-use keys, or by the relay: only then do many bytes pass here, on connections of their own."""
    settings, relayed = target.settings, choice[0].kind == "relay"
    key = OneUseKey.make() if not relayed and settings is not None else None
    if key is not None and settings is not None:
        question = {**question, "credentials": key.credentials(settings)}
    with source.asked("send", question, timeouts, bulk=relayed) as sender:
        announced = next(sender.events())
        if not isinstance(announced, dict):
            raise TransferError("the training box sent bytes before their sizes", host=source.name)
        wanted = _receive_question(checkpoint, target.host, announced, key)
        with target.asked("receive", wanted, timeouts, bulk=relayed) as receiver:
            heard = Listening(receiver, WANTED, lambda said: on_bytes(said["received"], said["total"]))
            ready = heard.expect("ready")
            if ready is None:
                return announced  # somebody else has brought it meanwhile
            shipment = Shipment(source, target, sender, receiver, heard, timeouts)
            try:
                return shipment.bring(ready["missing"], choice, on_trouble)
            except TornCheckpoint:
                shipment.drop()
                raise


def _receive_question(
    checkpoint: Checkpoint, host: Host, announced: Mapping[str, Any], key: OneUseKey | None
) -> dict[str, Any]:
    return {
        "workdir": host.workdir,
        "identity": checkpoint.identity,
        "files": announced["files"],
        "chunk": announced["chunk"],
        "plan": announced["plan"],
        "keep_free": host.keep_free,
        "keys": host.one_use_keys and host.transport != "local",
        "door": key.door(host) if key is not None else None,
        "meta": {
            "step": checkpoint.step,
            "source": f"{checkpoint.host}:{checkpoint.root}/{checkpoint.path}",
            "entry": _entry(announced["files"]),
        },
    }


def _entry(files: Sequence[Mapping[str, object]]) -> str:
    """What stands for the checkpoint on the harness' command line: its only file, else its folder."""
    return str(files[0]["path"]) if len(files) == 1 else ""
