"""orch watch beside the real trainer on real OpenSSH hosts: twenty checkpoints, rotation of three, damage and kills."""

from __future__ import annotations

import json
import signal
import struct
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from realstage import real_stage
from watched import Watching
from world import Stage, World, wait_until

pytestmark = [pytest.mark.hosts, pytest.mark.full, pytest.mark.timeout(900)]
EVERY = 20
STEPS = list(range(EVERY, 21 * EVERY, EVERY))
CUT, DAMAGED, REWRITTEN, FAILING = 60, 240, 160, 300
KILLED, UNPLUGGED = (100, 280), 200
TIMEOUTS = "poll: 300ms, watch: 2s, heartbeat: 500ms, dead: 3s, agent_dead: 4s, connect: 3s"
MAYBE = """\
import json, pathlib, runpy, sys
at = pathlib.Path(sys.argv[sys.argv.index("--drafter") + 1])
if json.loads((at.parent / "checkpoint.json").read_text())["step"] == {failing}:
    sys.exit(3)
runpy.run_path("eval_drafter.py", run_name="__main__")
"""


@pytest.fixture
def stage(testhosts: Any, world: World, tmp_path: Path) -> Iterator[Stage]:
    with real_stage(testhosts, world, tmp_path, timeouts=TIMEOUTS) as built:
        job = built.project / "jobs" / "eval-dflash.yaml"
        job.write_text(job.read_text().replace("eval_drafter.py", "maybe.py"))
        (built.project / "harness" / "maybe.py").write_text(MAYBE.format(failing=FAILING))
        hosts = built.project / "hosts.yaml"
        hosts.write_text(hosts.read_text().replace("/root/checkpoints", "/root/live"))
        assert built.orch("sync-harness", "--yes").returncode == 0
        yield built


@pytest.fixture
def typed(stage: Stage) -> Iterator[Callable[[], Watching]]:
    """Types the command; closes what was typed."""
    words = ["watch", "dflash", "--backfill", "--until", "training-ends", "--json"]
    made: list[Watching] = []

    def one() -> Watching:
        process = subprocess.Popen(
            [sys.executable, "-c", "from orchestrator.cli import main; main()", *words],
            cwd=stage.project,
            env=stage.variables(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        made.append(Watching(process))
        return made[-1]

    yield one
    for watching in made:
        watching.close()


def test_every_complete_checkpoint_is_evaluated_once_or_reported_as_gone(
    testhosts: Any, stage: Stage, typed: Callable[[], Watching]
) -> None:
    last = str(STEPS[-1])
    stage.start_training("--save-every", str(EVERY), "--keep", "3", "--pace", "3", "--steps", last)
    watching, seen = typed(), []
    for step in STEPS:
        place = stage.train / "live" / f"step_{step}" / "checkpoint.pt"
        wait_until(lambda place=place: place.exists() and readable(place), 60)
        if step == CUT:
            place.write_bytes(place.read_bytes()[:-200])
        elif step == DAMAGED:
            damage(place)
        if step in (CUT, DAMAGED):
            watching.process.send_signal(signal.SIGCONT)
        elif step + EVERY in (CUT, DAMAGED):  # it must not see the next one whole
            watching.process.send_signal(signal.SIGSTOP)
        if step == REWRITTEN:
            time.sleep(4)
            state = torch.load(place, weights_only=False)
            torch.save({**state, "rewritten": True}, place)
        elif step in KILLED:
            watching.kill()
            seen += watching.events
            time.sleep(1)
            watching = typed()
        elif step == UNPLUGGED:
            with testhosts.unplugged("train"):
                time.sleep(8)
    code = watching.ended(300)
    seen += watching.events
    gone = {event["step"] for event in seen if event["event"] == "gone"}
    assert code == (0 if FAILING in gone else 8), (gone, watching.said())
    runs = [json.loads(path.read_text()) for path in stage.evaluate.glob("orch/runs/*/spec.json")]
    folders = {path.parent.name: json.loads(path.read_text()) for path in stage.evaluate.glob("orch/runs/*/exit.json")}
    ended = [(run["checkpoint"], run["step"], folders[run["id"]]["state"]) for run in runs]
    once = Counter(identity for identity, _, state in ended if state == "succeeded")
    assert set(once.values()) == {1}, once
    evaluated = {step for _, step, state in ended if state == "succeeded"}
    failed = [step for _, step, state in ended if state == "failed"]
    assert failed in ([FAILING] * 2, []) and set(STEPS) - {CUT, DAMAGED, FAILING} <= evaluated | gone, (evaluated, gone)
    assert failed or FAILING in gone
    results = {event["step"] for event in seen if event["event"] == "result"}
    assert results == evaluated and not results & {CUT, DAMAGED, FAILING}
    assert len(gone) <= 4, "a watch that keeps up misses few"
    assert {event["event"] for event in seen} >= {"lost", "back", "torn"}


def readable(place: Path) -> bool:
    try:
        torch.load(place, weights_only=False, mmap=True)
    except Exception:
        return False
    return True


def damage(place: Path) -> None:
    """One bit of the model's first tensor: only the CRC of its record shows it."""
    with zipfile.ZipFile(place) as archive:
        record = next(one for one in archive.infolist() if one.filename.endswith("/data/0"))
    content = bytearray(place.read_bytes())
    name, extra = struct.unpack_from("<HH", content, record.header_offset + 26)
    content[record.header_offset + 30 + name + extra] ^= 1
    place.write_bytes(content)
