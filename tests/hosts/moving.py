"""Two real hosts, a checkpoint on one of them, and shipments between them that can be cut."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch

from orchestrator.actions import staging
from orchestrator.model import Checkpoint, Host, Job, Timeouts, TransferName
from orchestrator.ssh.agent import ask
from orchestrator.ssh.choose import Connections
from remote_payload.agent.chunks import CHUNK

if TYPE_CHECKING:
    from conftest import TestHosts

TENSORS, EACH = 12, 1024 * 1024
SLOW = 12_000_000
"""bytes a second: 50 MB take four seconds, time enough to cut something"""
PATIENT = Timeouts()
"""also where the test machine is busy: what orch runs on a training box comes last there"""
QUICK = Timeouts(heartbeat=1.0, dead=8.0, agent_dead=9.0)
"""for what is cut"""
JOB = Job(name="job", path=Path("job.yaml"), harness_local=Path(), harness_remote="eval", command=("true",))


@dataclass
class Boxes:
    """A training box with one checkpoint, an evaluation box, and what a shipment between them needs."""

    hosts: TestHosts
    model: dict[str, torch.Tensor]
    train: Host = field(
        default_factory=lambda: Host(name="train", ssh="root@train", roles=frozenset({"train"}), python=sys.executable)
    )
    evaluate: Host = field(
        default_factory=lambda: Host(name="eval", ssh="root@eval", roles=frozenset({"eval"}), python=sys.executable)
    )
    troubles: list[str] = field(default_factory=list)

    def home(self, name: str) -> Path:
        return self.hosts.state / name / "fs" / "p" / "root"

    def inside(self, name: str, path: str) -> Path:
        """A path of a host with everything that is mounted there."""
        pid = (self.hosts.state / name / "pid").read_text().strip()
        return Path(f"/proc/{pid}/root") / path.replace("~", "/root").lstrip("/")

    @property
    def arrived(self) -> Path:
        return self.inside("eval", self.evaluate.workdir) / "checkpoints"

    @property
    def keys(self) -> Path:
        return self.home("eval") / ".ssh" / "authorized_keys"

    def ship(
        self,
        transfer: TransferName = "auto",
        *,
        limit_rate: int | None = None,
        on_bytes: Callable[[int, int], None] = lambda done, total: None,
        timeouts: Timeouts = PATIENT,
    ) -> dict[str, Any]:
        """What eval-latest does between its plan and its launch. Returns the sender's account."""
        with Connections(timeouts) as connections:
            source = staging.End(connection=connections.to(self.train), host=self.train, role="train")
            target = staging.End(connection=connections.to(self.evaluate), host=self.evaluate, role="eval")
            choice = staging.choose(source, target, transfer, timeouts, limit_rate)
            return staging.ship(
                self.checkpoint(source, timeouts),
                JOB,
                source,
                target,
                timeouts,
                on_bytes,
                self.troubles.append,
                choice=choice,
                layout=None,
                limit_rate=limit_rate,
            )

    def checkpoint(self, source: staging.End, timeouts: Timeouts) -> Checkpoint:
        args = {"root": "/root/moving"}
        found = ask(source.connection, source.host, "scan", args, role="train", timeouts=timeouts)["latest"]
        wanted = {key: found[key] for key in ("path", "step", "bytes", "ship_bytes", "identity")}
        return Checkpoint(host="train", root="/root/moving", **wanted)

    def assert_arrived(self, *, cut: int = 0) -> None:
        """The model lies there, bit for bit, and nothing else but `cut` shipments of others."""
        folders = list(self.arrived.iterdir())
        (folder,) = (folder for folder in folders if not folder.name.startswith("."))
        assert len(folders) == 1 + cut
        found = safetensors.torch.load_file(folder / "model.safetensors")
        assert found.keys() == self.model.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in self.model.items())

    def running(self, host: str) -> list[str]:
        """Command lines of what orch started there: agents, and connections that they started."""
        said = self.hosts.sh(host, "ps -eo pid=,args=", check=False).stdout.splitlines()
        return [line for line in said if " -I -S -B -c" in line or "ssh -F none" in line]

    def wait_until_quiet(self, host: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while left := self.running(host):
            assert time.monotonic() < deadline, left
            time.sleep(0.2)

    def start(self, transfer: TransferName) -> Shipping:
        shipping = Shipping(self, transfer)
        shipping.start()
        return shipping


class Shipping(threading.Thread):
    """A slow shipment under way, for cutting."""

    def __init__(self, boxes: Boxes, transfer: TransferName) -> None:
        super().__init__(daemon=True)
        self._boxes, self._transfer = boxes, transfer
        self.done, self.total = 0, 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._boxes.ship(self._transfer, limit_rate=SLOW, on_bytes=self._moved, timeouts=QUICK)
        except BaseException as error:
            self.error = error

    def _moved(self, done: int, total: int) -> None:
        self.done, self.total = done, total

    def until_half(self) -> None:
        deadline = time.monotonic() + 120
        while not self.total or self.done < self.total / 2:
            assert self.is_alive() and time.monotonic() < deadline, self.error
            time.sleep(0.05)

    def failed(self) -> BaseException:
        """The error that ended it."""
        self.join(60)
        assert self.error is not None
        return self.error


def resumed(boxes: Boxes, kept: int, transfer: TransferName) -> None:
    """The same command again sends only what is missing, and at most two chunks more."""
    account = boxes.ship(transfer)
    assert account["sent"]["bytes"] <= account["bytes"] - kept + 2 * CHUNK
    assert account["sent"]["bytes"] < 0.75 * account["bytes"]
    boxes.assert_arrived()
