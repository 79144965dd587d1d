"""The verb `ship`: a checkpoint's bytes from the training box to the evaluation host, hash-checked, renamed last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from orchestrator.errors import TransferError
from orchestrator.model import Checkpoint, Host, Job, Timeouts
from orchestrator.ssh.agent import Conversation
from orchestrator.ssh.connection import Connection

ROUTE = "through this machine's memory, without landing on its disk"


def ship(
    checkpoint: Checkpoint,
    job: Job,
    source: tuple[Connection, Host],
    target: tuple[Connection, Host],
    timeouts: Timeouts,
    on_bytes: Callable[[int, int], None],
    *,
    layout: str | None,
) -> dict[str, object]:
    """Stream what the job needs of the checkpoint; what arrives is a Checkpoint there, or nothing is.

    `on_bytes(done, total)` is called as they pass. Returns the sender's account: bytes, sha256, stripped prefixes ...
    Raises TransferError when the source changed or a record was damaged, ConnectionLost, Refused (no space).
    """
    ask_source = {
        "root": checkpoint.root,
        "path": checkpoint.path,
        "ship": job.ship,
        "model_key": job.model_key,
        "identity": checkpoint.identity,
        "limit_rate": None,
        "layout": layout,
    }
    with Conversation(source[0], source[1], "send", ask_source, role="train", timeouts=timeouts, bulk=True) as sender:
        announced = next(sender.events())
        if not isinstance(announced, dict):
            raise TransferError("the training box sent bytes before their sizes", host=source[1].name)
        ask_target = {
            "workdir": target[1].workdir,
            "identity": checkpoint.identity,
            "files": announced["files"],
            "meta": {
                "step": checkpoint.step,
                "source": f"{checkpoint.host}:{checkpoint.root}/{checkpoint.path}",
                "entry": _entry(announced["files"]),
            },
        }
        with Conversation(
            target[0], target[1], "receive", ask_target, role="eval", timeouts=timeouts, bulk=True
        ) as receiver:
            if "ready" not in next(receiver.events(), {}):
                return announced  # somebody else has brought it meanwhile
            done = 0
            for event in sender.events():
                if isinstance(event, bytes):
                    if not receiver.send(event):
                        receiver.result()  # raises what ended it; the rest is not read from the training box
                        raise TransferError(f"{target[1].name} stopped taking bytes", host=target[1].name)
                    done += len(event)
                    on_bytes(done, announced["size"])
            receiver.finish_sending()
            receiver.tell({"files": sender.answer["files"]})
            receiver.result()
    return sender.answer


def _entry(files: Sequence[Mapping[str, object]]) -> str:
    """What stands for the checkpoint on the harness' command line: its only file, else its folder."""
    return str(files[0]["path"]) if len(files) == 1 else ""
