"""Checkpoints on their way between two real hosts: each route, what a cut leaves behind, and what it does not cost."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from moving import EACH, PATIENT, QUICK, TENSORS, Boxes, resumed
from tracing import offences, processes, traced

from orchestrator.actions import staging
from orchestrator.errors import ConnectionLost, OrchError, Refused, TornCheckpoint, TransferError
from orchestrator.model import TransferName
from orchestrator.ssh.choose import Connections
from orchestrator.ssh.onekey import OneUseKey

if TYPE_CHECKING:
    from conftest import TestHosts

pytestmark = pytest.mark.hosts
TUNNEL, RELAY = (pytest.param(name, marks=pytest.mark.full) for name in ("tunnel", "relay"))
"""the ways whose sending costs more: where the default tier has another way through the same code"""


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


@pytest.mark.parametrize("transfer", ["direct", TUNNEL, "relay"])
def test_each_route_brings_the_model_bit_for_bit(boxes: Boxes, transfer: TransferName) -> None:
    seen: list[tuple[int, int]] = []
    account = boxes.ship(transfer, on_bytes=lambda done, total: seen.append((done, total)))
    boxes.assert_arrived()
    assert account["sent"]["bytes"] == account["bytes"] and seen[-1] == (account["bytes"], account["bytes"])
    assert boxes.troubles == []
    assert boxes.ship(transfer).get("sent") is None, "it is there already, so nothing is sent"


@pytest.mark.parametrize("transfer", ["direct", TUNNEL])
def test_the_training_box_is_only_read_while_it_sends_by_itself(boxes: Boxes, transfer: TransferName) -> None:
    with traced(boxes.hosts, "train") as folder:
        boxes.ship(transfer)
    mine = processes(folder)
    assert any("execve" in line and '"-F", "none"' in line for said in mine.values() for line in said)
    assert offences(mine) == []
    boxes.assert_arrived()


@pytest.mark.full
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


@pytest.mark.full
def test_where_the_boxes_do_not_reach_each_other_the_tunnel_is_taken_and_said(boxes: Boxes) -> None:
    with boxes.hosts.unplugged("train", "eval"), Connections(PATIENT) as connections:
        source = staging.End(connection=connections.to(boxes.train), host=boxes.train, role="train")
        target = staging.End(connection=connections.to(boxes.evaluate), host=boxes.evaluate, role="eval")
        choice = staging.choose(source, target, "auto", PATIENT)
        assert [route.kind for route in choice] == ["tunnel", "relay"]
        assert "train does not reach eval" in choice[0].why and "no answer within 4 s" in choice[0].why
        boxes.ship()
    boxes.assert_arrived()


@pytest.mark.full
def test_where_only_the_direct_way_may_be_taken_and_is_not_there_it_says_how_often_it_was_tried(boxes: Boxes) -> None:
    with (
        boxes.hosts.unplugged("train", "eval"),
        pytest.raises(Refused, match=r"train does not reach eval .*no answer within 4 s, tried 3 times"),
    ):
        boxes.ship("direct")


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
from moving import SLOW, Boxes
hosts = TestHosts(prefix=sys.argv[2], network=sys.argv[3], state=Path(sys.argv[4]))
Boxes(hosts=hosts, model={}).ship(sys.argv[5], limit_rate=SLOW, on_bytes=lambda done, total: print(done, flush=True))
"""


@pytest.mark.parametrize("transfer", ["direct", TUNNEL, RELAY])
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


@pytest.mark.parametrize(
    "transfer",
    ["direct", pytest.param("tunnel", marks=pytest.mark.full), pytest.param("relay", marks=pytest.mark.full)],
)
def test_a_cut_link_to_the_training_box_leaves_nothing_running_there(boxes: Boxes, transfer: TransferName) -> None:
    shipping = boxes.start(transfer)
    shipping.until_half()
    kept = shipping.done
    with boxes.hosts.unplugged("train"):
        assert isinstance(shipping.failed(), ConnectionLost | TransferError)
        boxes.wait_until_quiet("train", QUICK.agent_dead + 5)
    resumed(boxes, kept, transfer)


@pytest.mark.full
@pytest.mark.parametrize("transfer", ["direct", TUNNEL, RELAY])
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


@pytest.mark.parametrize("transfer", ["direct", TUNNEL, RELAY])
def test_after_a_killed_sender_it_goes_on(boxes: Boxes, transfer: TransferName) -> None:
    shipping = boxes.start(transfer)
    shipping.until_half()
    kept = shipping.done
    boxes.hosts.sh("train", "pkill -KILL -f -- '[-]I -S -B -c'")
    assert isinstance(shipping.failed(), ConnectionLost)
    boxes.wait_until_quiet("eval", 3)
    resumed(boxes, kept, transfer)


@pytest.mark.full
@pytest.mark.parametrize("transfer", ["direct", TUNNEL, RELAY])
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


@pytest.mark.parametrize("transfer", ["direct", RELAY])
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


@pytest.mark.full
@pytest.mark.parametrize("transfer", ["direct", TUNNEL, RELAY])
def test_a_disk_that_fills_in_the_middle_is_said_and_then_it_goes_on(boxes: Boxes, transfer: TransferName) -> None:
    make = "truncate -s 64m /root/image && mkfs.ext2 -q -F -m 0 /root/image && mkdir -p /root/small"  # promises nothing
    boxes.hosts.sh("eval", f"{make} && mount -o loop /root/image /root/small && echo x >/root/small/y")
    boxes.evaluate = replace(boxes.evaluate, workdir="/root/small", keep_free=0)
    try:
        shipping = boxes.start(transfer)
        shipping.until_half()
        boxes.hosts.sh("eval", "head -c 30m /dev/zero >/root/small/filler", check=False)
        error = shipping.failed()
        said = re.search(r"the disk is full; (\d+) of \d+ bytes are kept", str(error))
        assert isinstance(error, Refused) and said
        assert boxes.hosts.sh("eval", "cat /root/small/y && rm /root/small/filler").stdout == "x\n"
        resumed(boxes, int(said[1]), transfer)
    finally:
        boxes.hosts.sh("eval", "umount /root/small && rm -r /root/small /root/image")


@pytest.mark.parametrize("way", ["removed", "replaced"])
def test_rotation_while_it_is_on_its_way_is_harmless(boxes: Boxes, way: str) -> None:
    shipping = boxes.start("direct")
    shipping.until_half()
    folder = boxes.home("train") / "moving" / "step_1"
    if way == "removed":
        shutil.rmtree(folder)
    else:
        torch.save({"model": {}, "step": 1}, folder / "new.pt")
        os.replace(folder / "new.pt", folder / "checkpoint.pt")
    shipping.join(60)
    assert shipping.error is None
    boxes.assert_arrived()


def test_rewriting_in_place_is_noticed_and_the_next_attempt_takes_the_new_save_whole(boxes: Boxes) -> None:
    shipping = boxes.start("direct")
    shipping.until_half()
    boxes.model = {name: tensor + 1 for name, tensor in boxes.model.items()}
    path = boxes.home("train") / "moving" / "step_1" / "checkpoint.pt"
    torch.save({"model": boxes.model, "optimizer": torch.zeros(EACH), "step": 1}, path)
    error = shipping.failed()
    assert type(error) is TransferError and "changed while it was read" in str(error)
    boxes.ship("direct")
    boxes.assert_arrived(cut=1)


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
