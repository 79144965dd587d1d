"""What a full disk on an evaluation host does, on a real small disk (tmpfs)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from evalhost import EvalHost, stage, wait_until, write_files

from orchestrator.actions import staging as shipping
from orchestrator.errors import Refused
from orchestrator.model import Checkpoint, Host, Job, Route, Timeouts
from orchestrator.ssh.local import LocalConnection
from remote_payload.agent import lookagain, push, runs, scratch
from remote_payload.agent.errors import AgentError
from remote_payload.agent.scan import scan

PAGE = 4096
SUCCEED = ["{python}", "eval.py", "{result}"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "orch-test", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def leave(disk: Path, pages: int) -> None:
    """Fill the disk but for some pages."""
    ballast = disk / "ballast"
    ballast.unlink(missing_ok=True)
    free = os.statvfs(disk).f_bavail - pages
    with ballast.open("wb") as file, suppress(OSError):  # somebody else may write meanwhile
        for _ in range(free):
            os.write(file.fileno(), bytes(PAGE))


@pytest.mark.parametrize("spare", range(-3, 6))
def test_a_disk_that_fills_up_during_the_launch_is_said(
    disk: Path, spare: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With less or more room: before the run folder, between it and the supervisor, or behind."""
    monkeypatch.setattr(lookagain, "ROOM", 0)  # there was room when it was looked for
    host = EvalHost(disk)
    write_files(host.remote, {"eval.py": "import sys; open(sys.argv[1], 'w').write('{}')"})
    stage(host.workdir)
    before = os.statvfs(disk).f_bavail
    first = host.launch(SUCCEED, key="first")
    host.end(first["id"])
    parts = [*host.folder(first["id"]).glob("harness/*"), *host.folder(first["id"]).glob("*.py")]
    folder = [host.folder(first["id"]) / name for name in ("spec.json", "harness.json", "writer.json")]
    needed = sum(-(-path.stat().st_size // PAGE) for path in parts + folder)
    assert needed <= before
    leave(disk, needed + spare)
    try:
        run_id = host.launch(SUCCEED, key="second")["id"]
    except AgentError as error:
        assert "disk is full" in error.message or "No space left" in error.message
        states = [row["state"] for row in runs.list_runs(str(host.workdir)) if row["key"] == "second"]
        assert states in ([], ["queued"], ["lost"], ["failed"])
    else:
        assert host.end(run_id)["state"] in ("failed", "succeeded")


def test_nothing_is_left_of_a_work_folder_that_could_not_name_its_writer(disk: Path) -> None:
    write_files(disk / "eval", {"a.py": "a"})
    leave(disk, 0)
    with pytest.raises(AgentError, match="disk is full"):
        push.push(str(disk / "eval"), [], [], [], {}, [])
    assert not [name for name in os.listdir(disk / "eval" / ".orch") if name.startswith("incoming")]
    scratch.sweep(str(disk / "eval" / ".orch"), "incoming")


def test_an_evaluation_that_fails_on_a_full_disk_says_so(disk: Path) -> None:
    host = EvalHost(disk)
    fill = "import os, sys; f = open(sys.argv[1], 'wb')\nwhile True: f.write(bytes(1 << 16)); f.flush()"
    write_files(host.remote, {"eval.py": fill})
    stage(host.workdir)
    row = host.end(host.launch(SUCCEED)["id"])
    assert row["state"] == "failed" and "disk is full" in row["reason"]


@pytest.fixture
def old_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 MB whose file system (ext2) can't promise room beforehand."""
    image, place = tmp_path / "image", tmp_path / "old-disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(64_000_000)
    subprocess.run(["mkfs.ext2", "-q", "-F", "-b", str(PAGE), "-m", "0", str(image)], check=True)
    if subprocess.run(["mount", "-o", "loop", str(image), str(place)], capture_output=True).returncode:
        pytest.skip("needs the right to mount a disk")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_no_more_is_read_from_the_training_box_once_the_evaluation_host_has_no_room(
    old_disk: Path, tmp_path: Path
) -> None:
    disk = old_disk
    torch = pytest.importorskip("torch")
    root = tmp_path / "checkpoints"
    (root / "step_7").mkdir(parents=True)
    torch.save({"model": {"w": torch.zeros(10_000_000)}, "step": 7}, root / "step_7" / "checkpoint.pt")
    os.utime(root / "step_7" / "checkpoint.pt", (1, 1))
    latest = scan(str(root), layout=None, training_alive=False, now=1e9)["latest"]
    keys = ("path", "step", "bytes", "ship_bytes", "identity")
    checkpoint = Checkpoint(host="train", root=str(root), **{key: latest[key] for key in keys})
    train = Host(name="train", ssh="train", roles=frozenset({"train"}), transport="local", root=tmp_path)
    evaluate = Host(name="eval", ssh="eval", roles=frozenset({"eval"}), transport="local", root=disk)
    job = Job(name="j", path=tmp_path, harness_local=tmp_path, harness_remote="~/h", command=("x",))
    moved = []

    def on_bytes(done: int, total: int) -> None:
        if not moved:
            leave(disk, 0)
        moved.append(done)

    source = shipping.End(connection=LocalConnection(train, Timeouts()), host=train, role="train")
    target = shipping.End(connection=LocalConnection(evaluate, Timeouts()), host=evaluate, role="eval")
    relay = (Route(kind="relay", why="both are here"),)
    options = {"choice": relay, "layout": None, "limit_rate": 20_000_000}
    with pytest.raises(Refused, match="disk is full"):
        shipping.ship(checkpoint, job, source, target, Timeouts(), on_bytes, lambda trouble: None, **options)
    for end in (source, target):
        end.connection.close()
    assert moved[-1] < checkpoint.ship_bytes // 2


def test_a_queued_run_is_refused_when_its_turn_comes_on_a_disk_that_filled_up(disk: Path) -> None:
    host = EvalHost(disk)
    write_files(host.remote, {"eval.py": "import sys; open(sys.argv[1], 'w').write('{}')"})
    stage(host.workdir)
    wait = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.05)"
    first = host.launch(["{python}", "-c", wait, str(disk / "go")], key="first")["id"]
    second = host.launch(SUCCEED, key="second")["id"]
    wait_until(lambda: host.row(second)["state"] == "queued")
    leave(disk, lookagain.ROOM // PAGE - 16)
    (disk / "go").touch()
    row = host.end(second, 60.0)
    assert row["state"] == "refused" and "bytes free, a run needs" in row["reason"], row
    assert host.end(first, 60.0)["state"] == "failed", "it wrote no result"
