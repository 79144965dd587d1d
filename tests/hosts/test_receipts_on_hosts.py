"""Receipts on real OpenSSH hosts: a box that reboots, a cut link, a /proc that hides; and nothing is written there."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from desk import STEPPING, Desk
from tracing import offences, processes, traced
from world import wait_until

pytestmark = pytest.mark.hosts


@pytest.fixture
def desk(testhosts, tmp_path: Path) -> Iterator[Desk]:  # type: ignore[no-untyped-def]
    """A training on `train`, as root."""
    desk = Desk(tmp_path)
    desk.write(f"  train: {{ssh: root@train, roles: [train], python: {sys.executable}}}\n", ["train"])
    start(testhosts)
    yield desk
    desk.clear()
    testhosts.sh("train", "kill -9 $(cat /root/train.pid); rm -f /root/train.pid /root/train.log /root/up", check=False)


def start(testhosts) -> None:  # type: ignore[no-untyped-def]
    words = f"{sys.executable} {STEPPING} /root/train.log --pidfile /root/train.pid"
    testhosts.sh("train", f"rm -f /root/train.log; setsid {words} </dev/null >/dev/null 2>&1 &")
    log = testhosts.state / "train" / "fs" / "p" / "root" / "train.log"
    wait_until(lambda: log.exists() and log.stat().st_size > 0, 30)


def guarded(desk: Desk):  # type: ignore[no-untyped-def]
    """A guarded command that runs until the file `down` is there; it runs when this returns."""
    script = f"cd {desk.folder}; touch up; while [ ! -e down ]; do sleep 0.1; done"
    typed = desk.start("guard", "tiny", "--json", "--", "sh", "-c", script)
    wait_until(lambda: (desk.folder / "up").exists() or typed.poll() is not None, 60)
    assert typed.poll() is None, typed.communicate()
    return typed


def test_a_box_that_reboots_beside_the_command_is_exit_9(testhosts, desk: Desk) -> None:  # type: ignore[no-untyped-def]
    typed = guarded(desk)
    testhosts.reboot("train")
    start(testhosts)
    wait_until(lambda: _sessions(testhosts) > 0, 60)
    (desk.folder / "down").touch()
    out, err = typed.communicate(timeout=60)
    document = json.loads(out)
    assert (typed.returncode, document["verdict"]) == (9, "changed"), err
    assert "after a restart of the host or container" in document["reasons"][0]


@pytest.mark.full
def test_a_cut_link_is_a_gap_and_accuses_nobody(testhosts, desk: Desk) -> None:  # type: ignore[no-untyped-def]
    typed = guarded(desk)
    with testhosts.unplugged("train"):
        wait_until(lambda: _sessions(testhosts) == 0, 60)
    wait_until(lambda: _sessions(testhosts) > 0, 60)
    (desk.folder / "down").touch()
    out, err = typed.communicate(timeout=60)
    document = json.loads(out)
    assert (typed.returncode, document["verdict"]) == (0, "undisturbed"), err
    assert document["windows"][0]["gaps"], "and the receipt says from when to when nobody watched"


def test_a_box_that_hides_others_processes_is_not_observed(testhosts, desk: Desk) -> None:  # type: ignore[no-untyped-def]
    desk.write(f"  train: {{ssh: dev@train, roles: [train], python: {sys.executable}}}\n", ["train"])
    hosts = desk.folder / "hosts.yaml"
    hosts.write_text(hosts.read_text().replace("process: {pidfile: train.pid}", "process: {match: stepping.py}"))
    testhosts.sh("train", "mount -o remount,hidepid=2 /proc")
    try:
        document = desk.json("guard", "tiny", "--json", "--", "true")
    finally:
        testhosts.sh("train", "mount -o remount,hidepid=0 /proc")
    assert document["verdict"] == "not_observed" and "hidepid=" in document["reasons"][0]


def test_watching_writes_nothing_on_the_training_box(testhosts, desk: Desk) -> None:  # type: ignore[no-untyped-def]
    if shutil.which("strace") is None:
        raise RuntimeError("strace is missing: apt-get install strace")
    with traced(testhosts, "train") as folder:
        document = desk.json("guard", "tiny", "--json", "--", "sleep", "2")
    assert document["verdict"] == "undisturbed"
    mine = processes(folder)
    assert mine and offences(mine) == []


def _sessions(testhosts) -> int:  # type: ignore[no-untyped-def]
    """Agents on the training box."""
    words = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -o -- '-I -S -[B]' | wc -l"
    return int(testhosts.sh("train", words).stdout)
