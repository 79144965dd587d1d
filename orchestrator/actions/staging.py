"""The verb `ship`: a checkpoint's bytes from the training box to the evaluation host, hash-checked, renamed last.

The receiver says which chunks it lacks, the sender sends those, until none is missing. So a shipment that was cut goes
on where it ended, whichever way it goes: over this machine, or from box to box.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.errors import TransferError
from orchestrator.model import Checkpoint, Host, Job, Timeouts
from orchestrator.ssh.agent import Conversation
from orchestrator.ssh.connection import Connection
from orchestrator.ssh.listening import Listening

ROUTE = "through this machine's memory, without landing on its disk"
WANTED = frozenset({"ready", "missing"})

End = tuple[Connection, Host]


def ship(
    checkpoint: Checkpoint,
    job: Job,
    source: End,
    target: End,
    timeouts: Timeouts,
    on_bytes: Callable[[int, int], None],
    *,
    layout: str | None,
) -> dict[str, Any]:
    """Bring what the job needs of the checkpoint; what arrives is a Checkpoint there, or nothing is.

    `on_bytes(done, total)` is called as they arrive. Returns the sender's account: bytes, what was sent, stripped
    prefixes ... Raises TornCheckpoint where a record was damaged, TransferError when the source changed or bytes did
    not arrive, ConnectionLost, Refused (no space).
    """
    question = {
        "root": checkpoint.root,
        "path": checkpoint.path,
        "ship": job.ship,
        "model_key": job.model_key,
        "identity": checkpoint.identity,
        "limit_rate": None,
        "layout": layout,
    }
    with Conversation(*source, "send", question, role="train", timeouts=timeouts, bulk=True) as sender:
        announced = next(sender.events())
        if not isinstance(announced, dict):
            raise TransferError("the training box sent bytes before their sizes", host=source[1].name)
        asked = _receive_question(checkpoint, target[1], announced)
        with Conversation(*target, "receive", asked, role="eval", timeouts=timeouts, bulk=True) as receiver:
            heard = Listening(receiver, WANTED, lambda said: on_bytes(said["received"], said["total"]))
            ready = heard.expect("ready")
            if ready is None:
                return announced  # somebody else has brought it meanwhile
            _all_rounds(sender, receiver, heard, ready["missing"])
            sender.tell({"missing": []})
            account = sender.result()
            receiver.tell({"sent": account["sent"]})
            heard.expect("answer")
    return account


def _receive_question(checkpoint: Checkpoint, host: Host, announced: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "workdir": host.workdir,
        "identity": checkpoint.identity,
        "files": announced["files"],
        "chunk": announced["chunk"],
        "plan": announced["plan"],
        "meta": {
            "step": checkpoint.step,
            "source": f"{checkpoint.host}:{checkpoint.root}/{checkpoint.path}",
            "entry": _entry(announced["files"]),
        },
    }


def _all_rounds(sender: Conversation, receiver: Conversation, heard: Listening, missing: list[list[int]]) -> None:
    """Send what is missing until nothing is. Raises TransferError after a round in which nothing arrived."""
    while missing:
        receiver.tell({"round": "relay"})
        sender.tell({"missing": missing, "way": {"kind": "relay"}})
        for event in sender.events():
            heard.check()
            if isinstance(event, bytes):
                receiver.send(event)
            else:
                break
        receiver.finish_sending()
        now = heard.expect("missing")
        if now == missing:
            raise TransferError("nothing of what was sent arrived whole", hint="run the command again")
        missing = now


def _entry(files: Sequence[Mapping[str, object]]) -> str:
    """What stands for the checkpoint on the harness' command line: its only file, else its folder."""
    return str(files[0]["path"]) if len(files) == 1 else ""
