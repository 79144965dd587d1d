"""A staged checkpoint is there only when every byte of it was proven."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from evalhost import Line, stage

from remote_payload.agent import incarnation, staging
from remote_payload.agent.errors import AgentError

FILES = {"config.json": b"{}", "shards/model-1.safetensors": b"a" * 300_000, "shards/model-2.safetensors": b""}


def question(workdir: Path, files: dict[str, bytes] | None = None) -> tuple[dict[str, Any], Line]:
    files = FILES if files is None else files
    listed = [{"path": path, "size": len(data)} for path, data in files.items()]
    sent = [{**one, "sha256": hashlib.sha256(files[one["path"]]).hexdigest()} for one in listed]
    stream = b"".join(files.values())
    pieces = [stream[at : at + 65536] for at in range(0, len(stream), 65536)]
    args = {
        "workdir": str(workdir),
        "identity": "id-1",
        "files": listed,
        "meta": {"step": 4000, "source": {"host": "a"}},
    }
    return args, Line(pieces, [{"files": sent}])


def left(workdir: Path) -> list[str]:
    return sorted(path.name for path in (workdir / "checkpoints").iterdir())


def test_a_checkpoint_arrives_with_its_record(tmp_path: Path) -> None:
    args, line = question(tmp_path)
    answer = staging.receive_answer(args, line)
    folder = Path(answer["path"])
    assert {path: (folder / path).read_bytes() for path in FILES} == FILES
    assert left(tmp_path) == ["id-1"] and not (folder / "writer.json").exists()
    (row,) = staging.staged(str(tmp_path))
    assert row == {"identity": "id-1", "step": 4000, "bytes": 300_002, "path": str(folder), "entry": ""}
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


def damaged(kind: str) -> tuple[list[bytes], str]:
    whole = list(question(Path("/"))[1].pieces)
    return {
        "cut": (whole[:-1], "too early"),
        "flipped": ([b"X" + whole[0][1:], *whole[1:]], "other bytes than were sent"),
        "longer": ([*whole, b"more"], "more came"),
    }[kind]


@pytest.mark.parametrize("kind", ["cut", "flipped", "longer"])
def test_a_damaged_stream_leaves_nothing(tmp_path: Path, kind: str) -> None:
    args, line = question(tmp_path)
    line.pieces, message = damaged(kind)
    with pytest.raises(AgentError, match=message) as raised:
        staging.receive_answer(args, line)
    assert raised.value.kind == "transfer" and left(tmp_path) == []


def test_a_receiver_that_was_killed_leaves_nothing_that_counts(tmp_path: Path) -> None:
    args, line = question(tmp_path)
    pid = os.fork()
    if pid == 0:

        def pieces() -> Iterator[bytes]:
            yield line.pieces[0]
            os.kill(os.getpid(), 9)

        line.received = pieces  # type: ignore[method-assign]
        staging.receive_answer(args, line)
    os.waitpid(pid, 0)
    assert len(left(tmp_path)) == 1 and left(tmp_path)[0].startswith(".incoming-id-1-")
    assert staging.staged(str(tmp_path)) == []
    staging.receive_answer(*question(tmp_path))
    assert left(tmp_path) == ["id-1"]


def test_the_work_of_a_living_receiver_is_not_swept(tmp_path: Path) -> None:
    stage(tmp_path, "other")
    alive = tmp_path / "checkpoints" / ".incoming-x-1"
    alive.mkdir()
    (alive / "writer.json").write_text(json.dumps(incarnation.record(os.getpid())))
    elsewhere = tmp_path / "checkpoints" / ".incoming-x-2"
    elsewhere.mkdir()
    (elsewhere / "writer.json").write_text(json.dumps({"incarnation": "b/1/2", "node": "another-machine", "pid": 1}))
    staging.receive_answer(*question(tmp_path))
    assert alive.exists() and elsewhere.exists()


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


@pytest.mark.parametrize("path", ["../evil", "/evil", "a/../../evil", "checkpoint.json", "writer.json"])
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


def test_a_disk_that_fills_meanwhile_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(tmp_path)], capture_output=True
    ).returncode:
        pytest.skip("needs root to mount a small disk")
    try:
        monkeypatch.setattr(staging, "RESERVE", -(1 << 20))  # as if the room had been there at the start
        with pytest.raises(AgentError, match="the disk is full; nothing of it was kept"):
            staging.receive_answer(*question(tmp_path))
        assert left(tmp_path) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_the_room_for_inodes_is_counted(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m,nr_inodes=8", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs root to mount a small disk")
    try:
        with pytest.raises(AgentError, match="inodes free"):
            staging.receive_answer(*question(tmp_path))
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
