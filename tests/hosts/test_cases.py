"""Checkpoint folders as trainings leave them: `orch checkpoints` on a real host, then what arrives on another one.

Each case comes from a bug report or a measurement; the answers are what a person would say who looks at the folder.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import pickle
import shlex
import struct
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import safetensors
import torch
from ckpt_files import facts, flip_bit, put, records, store, touch, training_state, weights, with_pickle, write
from moving import JOB, PATIENT, Boxes
from safetensors.torch import save_file

from orchestrator.actions import staging
from orchestrator.errors import Refused, TornCheckpoint
from orchestrator.model import Checkpoint
from orchestrator.ssh.choose import Connections
from remote_payload.agent import hostinfo

if TYPE_CHECKING:
    from conftest import TestHosts

pytestmark = [pytest.mark.hosts, pytest.mark.full]
ROOT = Path(__file__).parents[2]
CHECKPOINT = "step_4000/checkpoint.pt"
MARKS = ("/tmp/orch-case-ran", "/tmp/orch-case-escaped")
"""files that hostile checkpoints would make"""


@dataclass(frozen=True)
class Case:
    """A folder, and what has to be said of it."""

    build: Callable[[Path], object]
    latest: str | None = CHECKPOINT
    step: int = 4000
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    """path -> state, of those that were passed over"""
    warning: str = ""
    fails: type[Exception] | None = None
    """what shipping it raises"""
    says: str = ""
    arrives: frozenset[str] = frozenset({"model.safetensors"})


def steps(*numbers: int, **more: Any) -> Callable[[Path], None]:
    """Whole checkpoints, written in this order."""

    def build(root: Path) -> None:
        for when, number in enumerate(numbers):
            put(root / f"step_{number}" / "checkpoint.pt", training_state(number, **more), 60 * when)

    return build


def both(*builds: Callable[[Path], object]) -> Callable[[Path], None]:
    def build(root: Path) -> None:
        for each in builds:
            each(root)

    return build


def cut(root: Path) -> None:
    for number, left in ((6000, 0.6), (7000, 0.0)):
        path = put(root / f"step_{number}" / "checkpoint.pt", training_state(number), 60)
        os.truncate(path, int(path.stat().st_size * left) or path.stat().st_size - 1)
        touch(path, 60)


def leftovers(root: Path) -> None:
    (root / "step_5000").mkdir()
    write(root / "step_6000" / "checkpoint.pt", b"", 60)
    for name in ("step_7000.tmp", "tmp_step_8000", "step_9000-partial", ".step_9500", "step_best", "step_4500 (copy)"):
        put(root / name / "checkpoint.pt", training_state(1), 70)
    put(root / "step_9900" / "checkpoint.pt.tmp", training_state(1), 80)
    write(root / "step_9999", b"a file", 80)


def zeros(root: Path) -> None:
    write(root / "step_5000" / "checkpoint.pt", bytes((root / CHECKPOINT).stat().st_size), 60)


def no_pickle(root: Path) -> None:
    path = root / "step_5000" / "checkpoint.pt"
    path.parent.mkdir()
    with pytest.raises(Exception, match="lambda"):
        torch.save({"model": weights(1), "hook": lambda: 0}, path)
    touch(path, 60)


def dangling(root: Path) -> None:
    (root / "latest").symlink_to("step_5000")


def two_runs(root: Path) -> None:
    put(root / "lr1e-4" / "step_9000" / "checkpoint.pt", training_state(9000))
    put(root / "lr3e-4" / "step_3000" / "checkpoint.pt", training_state(3000), 900)


def hf_trainer(root: Path) -> None:
    for when, (name, state) in enumerate(
        {"checkpoint-500": True, "checkpoint-1000": False, "tmp-checkpoint-1500": True}.items()
    ):
        folder = root / name
        folder.mkdir()
        save_file(weights(500), folder / "model.safetensors")
        write(folder / "config.json", '{"model_type": "x"}')
        put(folder / "optimizer.pt", {"state": {}})
        if state:
            write(folder / "trainer_state.json", json.dumps({"global_step": int(name.rpartition("-")[2])}))
        for path in folder.iterdir():
            touch(path, when)


def lightning(root: Path) -> None:
    for name, number, when, seed in (
        ("epoch=0-step=900.ckpt", 900, 0, 1),
        ("epoch=1-step=1000.ckpt", 1000, 10, 2),
        ("epoch=1-step=1000-v1.ckpt", 1000, 500, 3),
    ):
        content = {"state_dict": weights(seed), "global_step": number, "pytorch-lightning_version": "2.5.0"}
        put(root / "checkpoints" / name, {**content, "optimizer_states": [], "epoch": 1, "callbacks": {}}, when)
    (root / "checkpoints" / "last.ckpt").symlink_to("epoch=1-step=1000.ckpt")


def dcp(root: Path) -> None:
    for number, when in ((90, 0), (100, 60)):
        write(root / f"step-{number}" / "__0_0.distcp", bytes(range(64)), when)
    write(root / "step-90" / ".metadata", pickle.dumps({"stub": 90}, 2))


def single(root: Path) -> None:
    model = {"_orig_mod." + name: tensor for name, tensor in weights(5).items()}
    put(root / "ckpt.pt", {"model": model, "optimizer": {}, "model_args": {"n_layer": 1}, "iter_num": 2000})


def private_classes(root: Path) -> None:
    module = types.ModuleType("trainer_of_theirs")
    kind = type("Schedule", (), {"__module__": "trainer_of_theirs"})
    module.Schedule = kind  # type: ignore[attr-defined]
    sys.modules["trainer_of_theirs"] = module
    more = {"args": argparse.Namespace(lr=1e-4, out=pathlib.PurePosixPath("/x")), "best": np.float64(1.25)}
    try:
        steps(4000, schedule=kind(), history=collections.defaultdict(list, loss=[1.0]), **more)(root)
    finally:
        del sys.modules["trainer_of_theirs"]


PLAIN = {"fc.weight": torch.arange(12.0).reshape(3, 4), "count": torch.tensor(7)}
WRAPPED = {
    "module._orig_mod.fc._checkpoint_wrapped_module.weight": torch.nn.Parameter(PLAIN["fc.weight"]),
    "module._orig_mod.count": PLAIN["count"],
}
BIG, TIED = torch.randn(1000, 8, generator=torch.Generator().manual_seed(9)), torch.ones(16, 8, dtype=torch.bfloat16)
VIEWS = {
    "embed": TIED,
    "head": TIED,
    "slice": BIG[100:104],
    "column": BIG[:5, 3],
    "transposed": BIG[:6, :4].t(),
    "expanded": torch.ones(1, 4).expand(3, 4),
}


def of(model: Mapping[str, torch.Tensor], **options: Any) -> Callable[[Path], object]:
    return lambda root: put(root / CHECKPOINT, {"model": model, "step": 4000}, **options)


def without_crc(root: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        steps(4000)(root)
    finally:
        torch.serialization.set_crc32_options(True)


def code(root: Path) -> None:
    command = f"touch {MARKS[0]}".encode()
    evil = b"\x80\x02cposix\nsystem\n(X" + struct.pack("<I", len(command)) + command + b"tR0"
    with_pickle(root / CHECKPOINT, lambda data: evil + data[2:])


def outside(root: Path) -> None:
    store(root / CHECKPOINT, [*records(root / CHECKPOINT), (f"../../../../../..{MARKS[1]}", b"x")])


WHOLE = weights(4000)
CASES = {
    "numeric_order": Case(steps(900, 1000, 4000, 10000), "step_10000/checkpoint.pt", 10000, weights(10000)),
    "copied_back": Case(steps(4000, 2000, 3000), tensors=WHOLE, warning="order by time differs from order by step"),
    "truncated": Case(
        both(steps(4000), cut),
        tensors=WHOLE,
        states={"step_6000/checkpoint.pt": "torn", "step_7000/checkpoint.pt": "torn"},
    ),
    "leftovers": Case(
        both(steps(4000), leftovers),
        tensors=WHOLE,
        states={
            **dict.fromkeys(("step_5000", "step_6000/checkpoint.pt", "step_9900"), "torn"),
            **dict.fromkeys(("step_7000.tmp", "tmp_step_8000", "step_9000-partial", "step_9999"), "ignored"),
        },
    ),
    "zeros": Case(both(steps(4000), zeros), tensors=WHOLE, states={"step_5000/checkpoint.pt": "torn"}),
    "no_pickle": Case(both(steps(4000), no_pickle), tensors=WHOLE, states={"step_5000/checkpoint.pt": "torn"}),
    "dangling_link": Case(both(steps(3000, 4000), dangling), tensors=WHOLE, warning="latest points at"),
    "two_runs": Case(two_runs, None, warning="lr1e-4 step 9000, lr3e-4 step 3000"),
    "hf_trainer": Case(
        hf_trainer,
        "checkpoint-500",
        500,
        weights(500),
        {"checkpoint-1000": "torn", "tmp-checkpoint-1500": "ignored"},
        arrives=frozenset({"config.json", "model.safetensors"}),
    ),
    "lightning": Case(lightning, "checkpoints/epoch=1-step=1000-v1.ckpt", 1000, weights(3)),
    "dcp": Case(
        dcp, "step-90", 90, states={"step-100": "torn"}, fails=Refused, says="distributed.checkpoint.format_utils"
    ),
    "single": Case(single, "ckpt.pt", 2000, weights(5)),
    "private_classes": Case(private_classes, tensors=WHOLE),
    "wrapped": Case(of(WRAPPED), tensors=PLAIN),
    "views": Case(of(VIEWS), tensors=VIEWS),
    "legacy": Case(of(WHOLE, _use_new_zipfile_serialization=False), tensors=WHOLE),
    "crc_off": Case(without_crc, tensors=WHOLE),
    "code": Case(both(steps(4000), code), tensors=WHOLE),
    "outside": Case(both(steps(4000), outside), warning="lies outside", fails=Refused, says="lies outside"),
    "flipped_bit": Case(
        both(steps(4000), lambda root: flip_bit(root / CHECKPOINT, "data/1")), fails=TornCheckpoint, says="its CRC"
    ),
    "empty": Case(lambda root: (root / "step_1").mkdir(), None, states={"step_1": "torn"}),
}


@pytest.fixture(scope="module")
def boxes(testhosts: TestHosts) -> Iterator[Boxes]:
    """All cases lie on the training box."""
    built = Boxes(hosts=testhosts, model={})
    for name, case in CASES.items():
        root = built.home("train") / "cases" / name
        root.mkdir(parents=True)
        case.build(root)
    yield built
    testhosts.sh("train", "rm -rf /root/cases")
    testhosts.sh("eval", "rm -rf /root/orch")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    runs = "\n".join(f"  {name}: {{host: train, checkpoints: /root/cases/{name}}}" for name in [*CASES, "slow"])
    hosts = f"  train: {{ssh: root@train, roles: [train], python: {sys.executable}}}"
    (tmp_path / "hosts.yaml").write_text(f"hosts:\n{hosts}\nruns:\n{runs}\n")
    return tmp_path


def orch_checkpoints(project: Path, run: str, code: int = 0) -> dict[str, Any]:
    words = ["-c", "from orchestrator.cli import main; main()", "checkpoints", run, "--json"]
    environment = {**os.environ, "ORCH_HOME": str(project / "state"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *words], cwd=project, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert isinstance(document, dict)
    return document


def shipped(boxes: Boxes, root: str, latest: Mapping[str, Any]) -> Path:
    """Where what evaluation needs of it has arrived."""
    wanted = {key: latest[key] for key in ("path", "step", "bytes", "ship_bytes", "identity")}
    checkpoint = Checkpoint(host="train", root=root, **wanted)
    with Connections(PATIENT) as connections:
        source = staging.End(connection=connections.to(boxes.train), host=boxes.train, role="train")
        target = staging.End(connection=connections.to(boxes.evaluate), host=boxes.evaluate, role="eval")
        choice = staging.choose(source, target, "direct", PATIENT)
        staging.ship(
            checkpoint, JOB, source, target, PATIENT, lambda *_: None, lambda _: None, choice=choice, layout=None
        )
    return boxes.arrived / checkpoint.identity


def tensors_in(folder: Path) -> dict[str, torch.Tensor]:
    with safetensors.safe_open(folder / "model.safetensors", "pt") as opened:
        aliases = json.loads((opened.metadata() or {}).get("aliases", "{}"))
        found = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (no dictionary)
    return {**found, **{alias: found[name] for alias, name in aliases.items()}}


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_each_case_is_told_as_it_is_and_arrives_as_it_was(boxes: Boxes, project: Path, name: str) -> None:
    case = CASES[name]
    document = orch_checkpoints(project, name, 0 if case.latest else 3)
    latest = document["latest"]
    assert (latest and latest["path"]) == case.latest and (not latest or latest["step"] == case.step)
    states = {row["path"]: row["state"] for row in document["candidates"]}
    assert {path: states.get(path) for path in case.states} == case.states
    assert all(row["reason"] for row in document["candidates"] if row["state"] != "complete")
    assert case.warning in "\n".join(document["warnings"])
    root = f"/root/cases/{name}"
    if case.fails is not None:
        with pytest.raises(case.fails, match=case.says):
            shipped(boxes, root, latest)
    elif latest:
        folder = shipped(boxes, root, latest)
        assert facts(tensors_in(folder)) == facts(dict(case.tensors))
        assert {path.name for path in folder.iterdir()} == case.arrives | {"checkpoint.json"}
    for mark in MARKS:
        assert not boxes.inside("train", mark).exists() and not boxes.inside("eval", mark).exists()


HUGE = """
import sys, torch
big = torch.zeros((1 << 32) + (1 << 20), dtype=torch.uint8)
big[:4], big[-4:], big[1 << 32] = 1, 2, 3
torch.save({"model": {"before": torch.arange(5), "big": big, "after": torch.arange(7)}, "step": 1}, sys.argv[1])
"""


@pytest.mark.timeout(900)
def test_a_tensor_of_more_than_4_gib_arrives_as_it_was(boxes: Boxes, project: Path) -> None:
    """A file and a record beyond what 32 bits count (zip64), and offsets beyond them."""
    if hostinfo.memory()["available"] < 14e9:
        pytest.skip("needs 14 GB of memory for the disks of both hosts")
    for host, folder in (("train", "/root/cases/slow"), ("eval", "/root/orch")):
        boxes.hosts.sh(host, f"mkdir -p {folder} && mount -t tmpfs -o size=5g tmpfs {folder}")
    try:
        path = "/root/cases/slow/step_1/checkpoint.pt"
        boxes.hosts.sh("train", f"mkdir {Path(path).parent}")
        assert in_background(boxes, f"{sys.executable} -c {shlex.quote(HUGE)} {path}").wait() == 0
        latest = orch_checkpoints(project, "slow")["latest"]
        assert latest["path"] == "step_1/checkpoint.pt" and latest["ship_bytes"] > 1 << 32
        folder = shipped(boxes, "/root/cases/slow", latest)
        with safetensors.safe_open(folder / "model.safetensors", "pt") as opened:
            assert torch.equal(opened.get_tensor("before"), torch.arange(5))
            assert torch.equal(opened.get_tensor("after"), torch.arange(7))
            big = opened.get_slice("big")
            assert big.get_shape() == [(1 << 32) + (1 << 20)]
            ends = [big[:5], big[(1 << 32) - 1 : (1 << 32) + 2], big[-5:]]
        assert [end.tolist() for end in ends] == [[1, 1, 1, 1, 0], [0, 3, 0], [0, 2, 2, 2, 2]]
    finally:
        for host, folder in (("train", "/root/cases/slow"), ("eval", "/root/orch")):
            boxes.hosts.sh(host, f"umount --lazy {folder}")


SLOW_WRITER = """
import io, sys, time, torch
stream = io.BytesIO()
torch.save({"model": {f"l{i}": torch.full((256, 256), 2000.0) for i in range(16)}, "step": 2000}, stream)
data, parts = stream.getvalue(), 64
with open(sys.argv[1], "wb", buffering=0) as file:
    for part in range(parts):
        file.write(data[part * len(data) // parts : (part + 1) * len(data) // parts])
        time.sleep(float(sys.argv[2]) / parts)
"""


def test_a_slow_save_counts_from_its_last_byte_on(boxes: Boxes, project: Path) -> None:
    root = boxes.home("train") / "cases" / "slow"
    put(root / "step_1000" / "checkpoint.pt", training_state(1000))
    (root / "step_2000").mkdir()
    path = "/root/cases/slow/step_2000/checkpoint.pt"
    (root / "writer.py").write_text(SLOW_WRITER)
    writer = in_background(boxes, f"{sys.executable} /root/cases/slow/writer.py {path} 6")
    while not (root / "step_2000" / "checkpoint.pt").exists():
        assert writer.poll() is None
        time.sleep(0.05)
    seen = []
    while writer.poll() is None:
        document = orch_checkpoints(project, "slow")
        seen.append((document["latest"]["step"], document["candidates"][0]["state"]))
    assert writer.returncode == 0
    while seen and seen[-1] == (2000, "complete"):  # after its last byte the writer takes some time to end
        seen.pop()
    assert len(seen) >= 3 and set(seen) == {(1000, "writing")}, seen
    assert orch_checkpoints(project, "slow")["latest"]["step"] == 2000


def in_background(boxes: Boxes, command: str) -> subprocess.Popen[bytes]:
    """A command on the training box, in the background."""
    script = ["bash", str(Path(__file__).with_name("testhosts.sh")), "exec", "train", "sh", "-c", command]
    return subprocess.Popen(script, env=boxes.hosts.environment(), stdin=subprocess.DEVNULL)
