"""A staged checkpoint is there only when every byte of it was proven."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from evalhost import Line, shipment, stage

from remote_payload.agent import chunks, incoming, staging
from remote_payload.agent.errors import AgentError
from remote_payload.agent.incoming import Incoming
from remote_payload.agent.inflow import Inflow

FILES = {"config.json": b"{}", "shards/model-1.safetensors": b"a" * 300_000, "shards/model-2.safetensors": b""}


TOOLS = "/usr/sbin:/usr/bin:/sbin:/bin"


def question(workdir: Path, files: dict[str, bytes] | None = None) -> tuple[dict[str, Any], Line]:
    return shipment(workdir, FILES if files is None else files, "id-1", 65536, source={"host": "a"})


def left(workdir: Path) -> list[str]:
    return sorted(path.name for path in (workdir / "checkpoints").iterdir())


def test_a_checkpoint_arrives_with_its_record(tmp_path: Path) -> None:
    args, line = question(tmp_path)
    answer = staging.receive_answer(args, line)
    folder = Path(answer["path"])
    assert {path: (folder / path).read_bytes() for path in FILES} == FILES
    assert left(tmp_path) == ["id-1"] and not (folder / "writer.json").exists()
    (row,) = staging.staged(str(tmp_path))
    assert row.pop("staged_at").endswith("Z")
    where = {"path": str(folder), "entry": "", "source": {"host": "a"}}
    assert row == {"identity": "id-1", "step": 4000, "bytes": 300_002, **where}
    assert json.loads((folder / "checkpoint.json").read_text())["source"] == {"host": "a"}


def test_what_is_there_already_is_not_received_again(tmp_path: Path) -> None:
    stage(tmp_path)
    assert stage(tmp_path)["already"] is True


def test_a_staged_checkpoint_whose_file_was_cut_does_not_count_and_is_replaced(tmp_path: Path) -> None:
    path = Path(stage(tmp_path)["path"]) / "model.safetensors"
    path.write_bytes(b"wei")
    assert staging.staged(str(tmp_path)) == []
    assert stage(tmp_path)["already"] is False
    assert path.read_bytes() == b"weights" and left(tmp_path) == ["abc"]


def damaged(kind: str, whole: list[bytes]) -> list[bytes]:
    return {
        "cut": whole[:-1],
        "cut inside a chunk": [*whole[:-1], whole[-1][:-40]],
        "flipped": [*whole[:2], whole[2][:100] + b"X" + whole[2][101:], *whole[3:]],
        "longer": [*whole, b"more than was announced"],
    }[kind]


@pytest.mark.parametrize("kind", ["cut", "cut inside a chunk", "flipped", "longer"])
def test_of_a_damaged_stream_the_good_chunks_are_kept_and_the_rest_is_asked_for_again(
    tmp_path: Path, kind: str
) -> None:
    args, line = question(tmp_path)
    whole = list(line.pieces)
    line.pieces = damaged(kind, whole)
    with pytest.raises(AgentError, match=r"did not come|no shipment") as raised:
        staging.receive_answer(args, line)
    assert raised.value.kind == "transfer" and staging.staged(str(tmp_path)) == []
    args, line = question(tmp_path)
    line.pieces = whole if kind == "longer" else [whole[2 if kind == "flipped" else -1]]
    line.messages[1]["sent"] = sent_of(line.pieces)
    folder = Path(staging.receive_answer(args, line)["path"])
    expected = {"longer": []}.get(kind, [[2, 2]] if kind == "flipped" else [[len(whole) - 1] * 2])
    assert line.said[0]["ready"]["missing"] == expected
    assert {path: (folder / path).read_bytes() for path in FILES} == FILES and left(tmp_path) == ["id-1"]


def sent_of(pieces: list[bytes]) -> dict[str, Any]:
    """What a sender says that put just these chunks on the way."""
    digests = {number: digest for number, _, digest in chunks.Frames(Inflow(pieces).into)}
    return {"chunks": chunks.to_ranges(sorted(digests)), "tree": chunks.tree(digests[i] for i in sorted(digests))}


def test_what_arrived_must_be_what_the_sender_says_it_sent(tmp_path: Path) -> None:
    args, line = question(tmp_path)
    line.messages[1]["sent"]["tree"] = "0" * 64
    with pytest.raises(AgentError, match="other bytes arrived than were sent"):
        staging.receive_answer(args, line)
    assert staging.staged(str(tmp_path)) == []


def killed_after(workdir: Path, pieces: int) -> None:
    """A receiver that is killed once so many chunks have come."""
    args, line = question(workdir)
    pid = os.fork()
    if pid == 0:

        def some() -> Iterator[bytes]:
            yield from line.pieces[:pieces]
            os.kill(os.getpid(), 9)

        line.received = some  # type: ignore[method-assign]
        staging.receive_answer(args, line)
    os.waitpid(pid, 0)


def test_after_a_killed_receiver_only_the_missing_chunks_are_asked_for(tmp_path: Path) -> None:
    killed_after(tmp_path, 3)
    assert left(tmp_path) == [".incoming-id-1"] and staging.staged(str(tmp_path)) == []
    args, line = question(tmp_path)
    line.pieces = line.pieces[3:]
    line.messages[1]["sent"] = sent_of(line.pieces)
    folder = Path(staging.receive_answer(args, line)["path"])
    assert line.said[0]["ready"]["missing"] == [[3, 5]]
    assert {path: (folder / path).read_bytes() for path in FILES} == FILES and left(tmp_path) == ["id-1"]


def test_a_chunk_that_the_journal_names_but_the_disk_has_lost_is_asked_for_again(tmp_path: Path) -> None:
    killed_after(tmp_path, 4)
    arriving = tmp_path / "checkpoints" / ".incoming-id-1"
    with (arriving / "files" / "shards" / "model-1.safetensors").open("r+b") as file:
        file.seek(65536)
        file.write(bytes(100))
    journal = (arriving / "journal").read_bytes()
    (arriving / "journal").write_bytes(journal[:-20])  # a line that was cut while it was written
    args, line = question(tmp_path)
    staging.receive_answer(args, line)
    assert line.said[0]["ready"]["missing"] == [[2, 5]]


def test_chunks_of_another_plan_are_not_mixed_in(tmp_path: Path) -> None:
    killed_after(tmp_path, 3)
    args, line = question(tmp_path)
    args["plan"] = "another"
    staging.receive_answer(args, line)
    assert line.said[0]["ready"]["missing"] == [[0, 5]]


def test_a_writer_of_an_earlier_attempt_can_do_no_harm(tmp_path: Path) -> None:
    args, line = question(tmp_path)
    arriving = tmp_path / "checkpoints" / ".incoming-id-1"
    arriving.mkdir(parents=True)
    stale = Incoming(str(arriving), args["files"], args["plan"], args["chunk"])
    index, data, digest = next(iter(chunks.Frames(Inflow(line.pieces[:1]).into)))
    assert stale.take(index, data, digest)
    fresh = Incoming(str(arriving), args["files"], args["plan"], args["chunk"])
    assert fresh.missing() == [[1, 5]]
    with pytest.raises(AgentError, match="another attempt has taken over"):
        stale.take(index, data, digest)
    stale.close()
    fresh.close()


def test_a_second_receiver_of_the_same_checkpoint_is_told_who_is_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming, "PATIENCE", 0.2)
    arriving = tmp_path / "checkpoints" / ".incoming-id-1"
    with incoming.held(str(arriving)), pytest.raises(AgentError, match=f"process {os.getpid()} on") as raised:
        staging.receive_answer(*question(tmp_path))
    assert raised.value.kind == "refused"


def test_two_receivers_at_once_leave_one_checkpoint(tmp_path: Path) -> None:
    answers: list[dict[str, Any]] = []
    threads = [
        threading.Thread(target=lambda: answers.append(staging.receive_answer(*question(tmp_path)))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 3 and left(tmp_path) == ["id-1"] and len(staging.staged(str(tmp_path))) == 1


@pytest.mark.parametrize("path", ["../evil", "/evil", "a/../../evil", "checkpoint.json"])
def test_a_path_from_the_wire_stays_in_its_folder(tmp_path: Path, path: str) -> None:
    args, line = question(tmp_path, {path: b"x"})
    with pytest.raises(AgentError):
        staging.receive_answer(args, line)
    assert not (tmp_path / "evil").exists() and staging.staged(str(tmp_path)) == []


@pytest.mark.parametrize("identity", ["../up", "", "a/b", ".incoming-x"])
def test_an_identity_that_is_no_name_is_refused(tmp_path: Path, identity: str) -> None:
    with pytest.raises(AgentError, match="not the identity"):
        stage(tmp_path, identity)


def test_too_little_room_is_refused_with_numbers_before_a_byte_comes(tmp_path: Path) -> None:
    args, line = question(tmp_path)
    args["files"][0]["size"] = 1 << 60
    with pytest.raises(AgentError, match=r"\d+ bytes free, \d+ needed") as raised:
        staging.receive_answer(args, line)
    assert raised.value.kind == "refused" and line.said == []


@contextmanager
def small_disk(folder: Path, *mount: str) -> Iterator[None]:
    """A disk of its own at `folder`."""
    if subprocess.run(["mount", *mount, str(folder)], capture_output=True).returncode:
        pytest.skip("needs root to mount a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


ALL_OF_IT = -(1 << 20)
"""`keep_free` below nothing: as if the room had been there at the start"""


def test_a_disk_that_fills_meanwhile_is_said_and_nothing_is_lost(tmp_path: Path) -> None:
    image, disk = tmp_path / "image", tmp_path / "disk"
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(400 * 1024)
    subprocess.run(["mkfs.ext2", "-q", "-F", "-m", "0", str(image)], check=True)  # it can't promise room
    with small_disk(disk, "-o", "loop", str(image)):
        (disk / "checkpoints" / "old").mkdir(parents=True)
        (disk / "checkpoints" / "old" / "file").write_bytes(b"kept")
        (disk / "filler").write_bytes(bytes(120_000))
        args, line = question(disk)
        args["keep_free"] = ALL_OF_IT
        with pytest.raises(AgentError, match=r"the disk is full; [1-9]\d+ of 300002 bytes are kept") as raised:
            staging.receive_answer(args, line)
        assert raised.value.kind == "refused" and (disk / "checkpoints" / "old" / "file").read_bytes() == b"kept"
        (disk / "filler").unlink()
        args, line = question(disk)
        args["keep_free"] = ALL_OF_IT
        folder = Path(staging.receive_answer(args, line)["path"])
        assert line.said[0]["ready"]["missing"][0][0] > 0
        assert {path: (folder / path).read_bytes() for path in FILES} == FILES


def test_room_that_the_disk_can_not_promise_is_refused_before_a_byte_comes(tmp_path: Path) -> None:
    with small_disk(tmp_path, "-t", "tmpfs", "-o", "size=200k", "tmpfs"):
        args, line = question(tmp_path)
        args["keep_free"] = ALL_OF_IT
        with pytest.raises(AgentError, match="the disk is full; 0 of 300002 bytes are kept"):
            staging.receive_answer(args, line)
        assert line.said == []


@pytest.mark.full
def test_a_quota_that_is_used_up_is_refused_before_a_byte_comes(tmp_path: Path) -> None:
    """A real quota, of btrfs: kernels without one for ext4 or xfs are common where tests run."""
    if shutil.which("mkfs.btrfs", path=TOOLS) is None:
        pytest.skip("needs btrfs-progs, of which scripts/test --full as root installs what it needs")
    image, disk = tmp_path / "image", tmp_path / "disk"
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(300 << 20)
    subprocess.run(["mkfs.btrfs", "-q", str(image)], check=True, env={"PATH": TOOLS}, capture_output=True)
    with small_disk(disk, "-o", "loop", str(image)):
        home = disk / "home"
        for command in (f"quota enable {disk}", f"subvolume create {home}", f"qgroup limit 1M {home}"):
            subprocess.run(["btrfs", *command.split()], check=True, env={"PATH": TOOLS}, capture_output=True)
        (home / "kept").write_bytes(b"kept")
        args, line = shipment(home, {"model.safetensors": bytes(3 << 20)}, "id-1", 65536)
        with pytest.raises(AgentError, match="the disk quota is used up; 0 of 3145728 bytes are kept") as raised:
            staging.receive_answer(args, line)
        assert raised.value.kind == "refused" and line.said == [] and (home / "kept").read_bytes() == b"kept"
        subprocess.run(["btrfs", "qgroup", "limit", "none", str(home)], check=True, env={"PATH": TOOLS})
        args, line = shipment(home, {"model.safetensors": bytes(3 << 20)}, "id-1", 65536)
        assert Path(staging.receive_answer(args, line)["path"], "model.safetensors").stat().st_size == 3 << 20


def test_the_room_for_inodes_is_counted(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m,nr_inodes=8", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs root to mount a small disk")
    try:
        with pytest.raises(AgentError, match="inodes free"):
            staging.receive_answer(*question(tmp_path))
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
