"""Checkpoints on their way between two real hosts: each route, what a cut leaves behind, and what it does not cost."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import safetensors.torch
import torch
from tracing import offences, processes, traced

from orchestrator.actions import staging
from orchestrator.errors import ConnectionLost, OrchError, Refused, TornCheckpoint, TransferError
from orchestrator.model import Checkpoint, Host, Job, Timeouts, TransferName
from orchestrator.ssh.agent import ask
from orchestrator.ssh.choose import Connections
from orchestrator.ssh.onekey import OneUseKey
from remote_payload.agent.chunks import CHUNK

if TYPE_CHECKING:
    from conftest import TestHosts

pytestmark = pytest.mark.hosts
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

    @property
    def arrived(self) -> Path:
        return self.home("eval") / "orch" / "checkpoints"

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

    def assert_arrived(self) -> None:
        """The model lies there, bit for bit, and nothing is left of the shipment."""
        (folder,) = list(self.arrived.iterdir())
        assert not folder.name.startswith(".")
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


@pytest.fixture
def boxes(testhosts: TestHosts) -> Iterator[Boxes]:
    generator = torch.Generator().manual_seed(1)
    model = {f"layers.{i}.weight": torch.randn(EACH, generator=generator) for i in range(TENSORS)}
    built = Boxes(hosts=testhosts, model=model)
    folder = built.home("train") / "moving" / "step_1"
    folder.mkdir(parents=True)
    torch.save({"model": model, "optimizer": torch.zeros(EACH), "step": 1}, folder / "checkpoint.pt")
    before = built.keys.read_bytes()
    yield built
    testhosts.sh("train", "rm -rf /root/moving")
    testhosts.sh("eval", "rm -rf /root/orch")
    assert built.keys.read_bytes() == before, "authorized_keys is what it was"


def resumed(boxes: Boxes, kept: int, transfer: TransferName) -> None:
    """The same command again sends only what is missing, and at most two chunks more."""
    account = boxes.ship(transfer)
    assert account["sent"]["bytes"] <= account["bytes"] - kept + 2 * CHUNK
    assert account["sent"]["bytes"] < 0.75 * account["bytes"]
    boxes.assert_arrived()


@pytest.mark.parametrize("transfer", ["direct", "tunnel", "relay"])
def test_each_route_brings_the_model_bit_for_bit(boxes: Boxes, transfer: TransferName) -> None:
    seen: list[tuple[int, int]] = []
    account = boxes.ship(transfer, on_bytes=lambda done, total: seen.append((done, total)))
    boxes.assert_arrived()
    assert account["sent"]["bytes"] == account["bytes"] and seen[-1] == (account["bytes"], account["bytes"])
    assert boxes.troubles == []
    assert boxes.ship(transfer).get("sent") is None, "it is there already, so nothing is sent"


@pytest.mark.parametrize("transfer", ["direct", "tunnel"])
def test_the_training_box_is_only_read_while_it_sends_by_itself(boxes: Boxes, transfer: TransferName) -> None:
    with traced(boxes.hosts, "train") as folder:
        boxes.ship(transfer)
    mine = processes(folder)
    assert any("execve" in line and '"-F", "none"' in line for said in mine.values() for line in said)
    assert offences(mine) == []
    boxes.assert_arrived()


def test_authorized_keys_is_put_back_byte_for_byte_with_mode_owner_and_link(boxes: Boxes) -> None:
    theirs = boxes.home("eval") / "dotfiles"
    theirs.mkdir()
    original = boxes.keys.read_bytes()
    odd = original.rstrip(b"\n") + b"\n\n# a comment\r\nno key at all \xff\xfe\n" + original.rstrip(b"\n")
    (theirs / "keys").write_bytes(odd)
    (theirs / "keys").chmod(0o640)
    os.chown(theirs / "keys", 0, 2001)
    boxes.keys.unlink()
    boxes.keys.symlink_to("/root/dotfiles/keys")
    try:
        shipping = boxes.start("direct")
        shipping.until_half()
        during = (theirs / "keys").read_bytes()
        shipping.join(60)
        after, status = (theirs / "keys").read_bytes(), (theirs / "keys").stat()
        link = os.readlink(boxes.keys)
    finally:
        boxes.keys.unlink()
        boxes.keys.write_bytes(original)
    assert shipping.error is None
    assert during.startswith(odd + b"\n")
    line = during[len(odd) + 1 :].decode()
    address = boxes.hosts.address("train")
    begins = rf'restrict,from="{re.escape(address)}",expiry-time="\d{{14}}",command="exec .*" ssh-ed25519 \S+ orch-'
    assert re.match(begins, line) and line.count("\n") == 1
    assert after == odd and link == "/root/dotfiles/keys"
    assert (status.st_mode & 0o7777, status.st_uid, status.st_gid) == (0o640, 0, 2001)


def test_the_one_use_key_opens_one_command_from_one_address_until_its_time(boxes: Boxes) -> None:
    key = OneUseKey.make()
    private = boxes.home("train") / "one-use"
    private.write_text(key.private)
    private.chmod(0o600)
    agent = f"cd {Path(__file__).parents[2]} && {sys.executable} -B -c"

    def entered(*addresses: str, life: float = 60) -> None:
        words = f"{key.id!r}, {key.public!r}, {list(addresses)!r}, 'echo forced', {life}"
        code = f"from remote_payload.agent import authorizedkeys as a; a.enter({words})"
        boxes.hosts.sh("eval", f'{agent} "{code}"')

    def login(words: str) -> subprocess.CompletedProcess[str]:
        options = (
            "-F none -i /root/one-use -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
        )
        return boxes.hosts.sh("train", f"ssh {options} {words}", check=False)

    there = f"root@{boxes.hosts.address('eval')}"
    try:
        entered(boxes.hosts.address("train"))
        assert login(f"{there} id").stdout == "forced\n"
        assert login(f"-N -o ExitOnForwardFailure=yes -R 2345:127.0.0.1:22 {there}").returncode == 255
        assert login(f"-W 127.0.0.1:22 {there}").returncode != 0
        entered(boxes.hosts.address("laptop"))
        assert "Permission denied" in login(f"{there} id").stderr
        entered(boxes.hosts.address("train"), life=-61)
        assert "Permission denied" in login(f"{there} id").stderr
    finally:
        private.unlink()
        boxes.hosts.sh("eval", f"{agent} 'from remote_payload.agent import authorizedkeys as a; a.sweep()'")


def test_where_the_boxes_do_not_reach_each_other_the_tunnel_is_taken_and_said(boxes: Boxes) -> None:
    with boxes.hosts.unplugged("train", "eval"), Connections(PATIENT) as connections:
        source = staging.End(connection=connections.to(boxes.train), host=boxes.train, role="train")
        target = staging.End(connection=connections.to(boxes.evaluate), host=boxes.evaluate, role="eval")
        choice = staging.choose(source, target, "auto", PATIENT)
        assert [route.kind for route in choice] == ["tunnel", "relay"]
        assert "train does not reach eval" in choice[0].why and "no answer within 4 s" in choice[0].why
        with pytest.raises(Refused, match=r"train does not reach eval .*no answer within 4 s, tried 3 times"):
            staging.choose(source, target, "direct", PATIENT)
        boxes.ship()
    boxes.assert_arrived()


def test_a_host_that_wants_no_keys_gets_the_relay(boxes: Boxes) -> None:
    boxes.evaluate = replace(boxes.evaluate, one_use_keys=False)
    before = boxes.keys.stat()
    boxes.ship()
    boxes.assert_arrived()
    after = boxes.keys.stat()
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)


def test_a_way_that_fails_gives_way_to_the_next_one(boxes: Boxes) -> None:
    """Hard links are not parted: no key, so the bytes go through here."""
    second = boxes.keys.with_name("second-name")
    os.link(boxes.keys, second)
    try:
        boxes.ship()
    finally:
        second.unlink()
    boxes.assert_arrived()
    assert len(boxes.troubles) == 2 and "hard links" in boxes.troubles[0]


def test_a_line_that_a_killed_attempt_left_is_swept_at_the_next_start(boxes: Boxes) -> None:
    before = boxes.keys.read_bytes()
    note = "until:9999999999,pid:999999,ticks:1,node:eval,incarnation:gone"
    stale = f'restrict,from="10.0.0.1",command="true" ssh-ed25519 AAAA orch-0123456789abcdef {note}\n'
    other = note.replace("node:eval", "node:elsewhere")
    shared = f'restrict,from="10.0.0.1",command="true" ssh-ed25519 AAAA orch-fedcba9876543210 {other}\n'
    boxes.keys.write_bytes(before + stale.encode() + shared.encode())
    try:
        boxes.ship("relay")
        assert boxes.keys.read_bytes() == before + shared.encode()
    finally:
        boxes.keys.write_bytes(before)


CONTROLLER = """
import json, os, sys
sys.path[:0] = json.loads(sys.argv[1])
from pathlib import Path
from conftest import TestHosts
from test_moving import Boxes, SLOW
hosts = TestHosts(prefix=sys.argv[2], network=sys.argv[3], state=Path(sys.argv[4]))
Boxes(hosts=hosts, model={}).ship(sys.argv[5], limit_rate=SLOW, on_bytes=lambda done, total: print(done, flush=True))
"""


@pytest.mark.parametrize("transfer", ["direct", "tunnel", "relay"])
def test_a_killed_controller_leaves_nothing_running_and_costs_only_what_was_on_the_way(
    boxes: Boxes, transfer: TransferName
) -> None:
    hosts, before = boxes.hosts, boxes.keys.read_bytes()
    paths = json.dumps([str(Path(__file__).parent), str(Path(__file__).parents[2])])
    words = [paths, hosts.prefix, hosts.network, str(hosts.state), transfer]
    with subprocess.Popen([sys.executable, "-c", CONTROLLER, *words], stdout=subprocess.PIPE, text=True) as controller:
        assert controller.stdout is not None
        kept = 0
        while kept < TENSORS * EACH * 4 / 2:
            kept = int(controller.stdout.readline())
        controller.send_signal(signal.SIGKILL)
    boxes.wait_until_quiet("train", 3)
    boxes.wait_until_quiet("eval", 3)
    assert boxes.keys.read_bytes() == before
    resumed(boxes, kept, transfer)


@pytest.mark.full
@pytest.mark.parametrize("transfer", ["direct", "tunnel", "relay"])
def test_a_cut_link_to_the_training_box_leaves_nothing_running_there(boxes: Boxes, transfer: TransferName) -> None:
    shipping = boxes.start(transfer)
    shipping.until_half()
    kept = shipping.done
    with boxes.hosts.unplugged("train"):
        assert isinstance(shipping.failed(), ConnectionLost | TransferError)
        boxes.wait_until_quiet("train", QUICK.agent_dead + 5)
    resumed(boxes, kept, transfer)


@pytest.mark.full
@pytest.mark.parametrize("transfer", ["direct", "tunnel", "relay"])
def test_after_a_cut_link_to_the_evaluation_box_it_goes_on(boxes: Boxes, transfer: TransferName) -> None:
    before = boxes.keys.read_bytes()
    shipping = boxes.start(transfer)
    shipping.until_half()
    kept = shipping.done
    with boxes.hosts.unplugged("eval"):
        assert isinstance(shipping.failed(), ConnectionLost | TransferError)
        boxes.wait_until_quiet("train", 20)
        boxes.wait_until_quiet("eval", QUICK.agent_dead + 5)
        assert boxes.keys.read_bytes() == before, "also without anybody to talk to"
    resumed(boxes, kept, transfer)


@pytest.mark.full
@pytest.mark.parametrize("transfer", ["direct", "tunnel", "relay"])
def test_after_a_killed_sender_it_goes_on(boxes: Boxes, transfer: TransferName) -> None:
    shipping = boxes.start(transfer)
    shipping.until_half()
    kept = shipping.done
    boxes.hosts.sh("train", "pkill -KILL -f -- '[-]I -S -B -c'")
    assert isinstance(shipping.failed(), ConnectionLost)
    boxes.wait_until_quiet("eval", 3)
    resumed(boxes, kept, transfer)


@pytest.mark.parametrize(
    "transfer",
    ["direct", pytest.param("tunnel", marks=pytest.mark.full), pytest.param("relay", marks=pytest.mark.full)],
)
def test_after_a_reboot_of_the_evaluation_box_it_goes_on(boxes: Boxes, transfer: TransferName) -> None:
    shipping = boxes.start(transfer)
    shipping.until_half()
    kept = shipping.done
    boxes.hosts.reboot("eval")
    assert isinstance(shipping.failed(), OrchError)
    boxes.wait_until_quiet("train", 20)
    resumed(boxes, kept, transfer)  # which also sweeps the line that nobody could take away


@pytest.mark.full
def test_a_cut_between_the_boxes_alone_goes_on_through_the_tunnel_in_the_same_command(boxes: Boxes) -> None:
    shipping = boxes.start("auto")
    shipping.until_half()
    with boxes.hosts.unplugged("train", "eval"):
        shipping.join(120)
    assert shipping.error is None and boxes.troubles and boxes.troubles[0].startswith("direct: ")
    boxes.assert_arrived()


@pytest.mark.parametrize("transfer", ["direct", "relay"])
def test_a_disk_without_room_is_a_clear_error_and_loses_nothing(boxes: Boxes, transfer: TransferName) -> None:
    boxes.hosts.sh(
        "eval", "mkdir -p /root/small && mount -t tmpfs -o size=30m small /root/small && echo x >/root/small/y"
    )
    boxes.evaluate = replace(boxes.evaluate, workdir="/root/small", keep_free=1)
    try:
        with pytest.raises(Refused, match=r"bytes free, \d+ needed"):
            boxes.ship(transfer)
        assert boxes.hosts.sh("eval", "cat /root/small/y").stdout == "x\n"
    finally:
        boxes.hosts.sh("eval", "umount /root/small && rmdir /root/small")


def test_a_record_that_does_not_fit_its_crc_is_torn_by_every_route(boxes: Boxes) -> None:
    path = boxes.home("train") / "moving" / "step_1" / "checkpoint.pt"
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    for transfer in ("direct", "relay"):
        with pytest.raises(TornCheckpoint, match="does not fit its CRC"):
            boxes.ship(transfer)  # type: ignore[arg-type]
        assert list(boxes.arrived.iterdir()) == [], "nothing of it is kept"
