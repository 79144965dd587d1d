"""The harness folder on a host: what is there, and a push that is whole or nothing."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from evalhost import HARNESS, Line, as_nobody, write_files

from orchestrator.ssh import bundle
from remote_payload.agent import harness, lastsync, lock, manifest, wire
from remote_payload.agent.errors import AgentError


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return write_files(tmp_path / "local", HARNESS)


def tree(root: Path) -> dict[str, tuple[str, bool]]:
    return {
        str(path.relative_to(root)): (path.read_text(), os.access(path, os.X_OK) and bool(path.stat().st_mode & 0o100))
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".orch" not in path.relative_to(root).parts
    }


def question(local: Path, remote: Path) -> tuple[dict[str, Any], list[bytes]]:
    """What a controller asks to make `remote` equal to `local`, and the bytes it sends."""
    mine = manifest.build(str(local))
    facts = harness.facts(str(remote), mine)
    theirs = {entry["path"]: entry for entry in facts["files"]}
    send = [one["path"] for one in mine if theirs.get(one["path"], {}).get("sha256") != one["sha256"]]
    delete = [path for path in theirs if path not in {one["path"] for one in mine}]
    args: dict[str, Any] = {"remote": str(remote), "entries": mine, "send": send, "delete": delete}
    args["expected"] = {path: theirs.get(path) for path in [*send, *delete]}
    return args, [(local / path).read_bytes() for path in send]


def push(local: Path, remote: Path) -> dict[str, Any]:
    args, pieces = question(local, remote)
    return harness.harness_push_answer(args, Line(pieces))


def state(local: Path, remote: Path) -> str:
    mine = manifest.build(str(local))
    facts = harness.facts(str(remote), mine)
    return str(manifest.compare(facts["base"], mine, facts["files"])["state"])


def test_the_first_push_makes_the_folder_and_remembers_what_it_was_made_equal_to(local: Path, tmp_path: Path) -> None:
    remote = tmp_path / "far" / "eval"
    assert harness.facts(str(remote), manifest.build(str(local)))["exists"] is False
    answer = push(local, remote)
    assert answer["pushed"] == sorted(HARNESS) and answer["saved"] is None
    assert tree(remote) == tree(local) and state(local, remote) == "in_sync"
    assert answer["digest"] == manifest.digest(lastsync.base_of(str(remote)) or [])


def test_changes_deletions_and_modes_follow_and_extras_stay(local: Path, tmp_path: Path) -> None:
    remote = tmp_path / "eval"
    push(local, remote)
    (remote / "notes.txt").write_text("mine")
    (local / "eval.py").write_text("new")
    (local / "lib/util.py").unlink()
    (local / "lib").rmdir()
    (local / "lib").write_text("now a file")
    (local / "run.sh").chmod(0o644)
    answer = push(local, remote)
    assert answer["pushed"] == ["eval.py", "lib", "run.sh"] and answer["deleted"] == ["lib/util.py"]
    assert answer["saved"] is None
    assert tree(remote) == {**tree(local), "notes.txt": ("mine", False)}
    assert [one["path"] for one in harness.facts(str(remote), manifest.build(str(local)))["extras"]] == ["notes.txt"]


def test_a_remote_edit_is_saved_before_it_is_replaced(local: Path, tmp_path: Path) -> None:
    remote = tmp_path / "eval"
    push(local, remote)
    (remote / "eval.py").write_text("a colleague's fix")
    (local / "lib/util.py").write_text("VALUE = 2\n")
    assert state(local, remote) == "both"
    saved = Path(push(local, remote)["saved"])
    assert tree(saved) == {"eval.py": ("a colleague's fix", False)}
    assert saved.parent == remote / ".orch" / "saved" and state(local, remote) == "in_sync"


def test_a_folder_that_was_never_synced_is_saved_whole(local: Path, tmp_path: Path) -> None:
    remote = write_files(tmp_path / "eval", {"eval.py": "old", "lib/util.py": HARNESS["lib/util.py"]})
    assert state(local, remote) == "unknown"
    assert tree(Path(push(local, remote)["saved"])) == {"eval.py": ("old", False)}


@pytest.mark.parametrize("change", ["edit", "add", "delete", "edit untouched"])
def test_a_remote_edit_after_the_plan_stops_the_push(local: Path, tmp_path: Path, change: str) -> None:
    remote = tmp_path / "eval"
    push(local, remote)
    (local / "eval.py").write_text("new")
    write_files(local, {"added.py": ""})
    args, pieces = question(local, remote)
    {
        "edit": lambda: (remote / "eval.py").write_text("edited meanwhile"),
        "add": lambda: (remote / "added.py").write_text("added meanwhile"),
        "delete": (remote / "eval.py").unlink,
        "edit untouched": lambda: (remote / "lib/util.py").write_text("edited meanwhile"),
    }[change]()
    before = tree(remote)
    with pytest.raises(AgentError, match="changed meanwhile"):
        harness.harness_push_answer(args, Line(pieces))
    assert tree(remote) == before and not list((remote / ".orch").glob("incoming-*"))


HOSTILE = ["../evil", "/etc/evil", "a/../../evil", "a//b", "./a", "", "a/", ".orch/synced.json", "a\0b", "out/evil"]


@pytest.mark.parametrize("path", HOSTILE)
def test_no_path_leaves_the_folder(tmp_path: Path, path: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    remote = tmp_path / "eval"
    remote.mkdir()
    (remote / "out").symlink_to(outside)
    entry = {"path": path, "mode": 0o644, "sha256": manifest.hashlib.sha256(b"x").hexdigest(), "size": 1}
    args = {"remote": str(remote), "entries": [entry], "send": [path], "delete": [], "expected": {}}
    with pytest.raises(AgentError):
        harness.harness_push_answer(args, Line([b"x"]))
    with pytest.raises(AgentError):
        harness.read_files(str(remote), [path])
    assert not list(outside.iterdir()) and not (tmp_path / "evil").exists()


def test_a_link_to_a_secret_is_neither_read_nor_written_through(local: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("do not read")
    remote = tmp_path / "eval"
    remote.mkdir()
    (remote / "eval.py").symlink_to(secret)
    assert harness.read_files(str(remote), ["eval.py"])[0]["why"] == "link"
    assert harness.facts(str(remote), manifest.build(str(local)))["files"][0]["sha256"] == "link"
    saved = Path(push(local, remote)["saved"])
    assert secret.read_text() == "do not read" and not (remote / "eval.py").is_symlink()
    assert (saved / "eval.py").is_symlink()


def test_bytes_that_are_missing_too_many_or_other_are_not_taken(local: Path, tmp_path: Path) -> None:
    remote = tmp_path / "eval"
    args, pieces = question(local, remote)
    wrong = [b"?" * len(pieces[0]), *pieces[1:]]
    for stream in (pieces[:-1], [*pieces, b"more"], wrong):
        with pytest.raises(AgentError) as raised:
            harness.harness_push_answer(args, Line(stream))
        assert raised.value.kind == "transfer" and tree(remote) == {}


def test_a_list_that_contradicts_itself_is_refused(local: Path, tmp_path: Path) -> None:
    args, pieces = question(local, tmp_path / "eval")
    for change in ({"send": ["not-listed.py"]}, {"delete": ["eval.py"]}, {"entries": args["entries"] * 2}):
        with pytest.raises(AgentError, match="contradicts"):
            harness.harness_push_answer({**args, **change}, Line(pieces))


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "tiny"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)], capture_output=True).returncode:
        pytest.skip("needs root to mount a small disk")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_leaves_the_old_harness_whole(local: Path, tiny_disk: Path) -> None:
    remote = tiny_disk / "eval"
    push(local, remote)
    (local / "eval.py").write_text("small change")
    (local / "big.py").write_bytes(b"x" * (1 << 20))
    with pytest.raises(AgentError, match="disk is full; the harness there is as it was"):
        push(local, remote)
    assert tree(remote) == {name: (text, name == "run.sh") for name, text in HARNESS.items()}
    (local / "big.py").unlink()
    assert push(local, remote)["pushed"] == ["eval.py"]


def test_a_folder_that_may_not_be_written_is_said_to_be(local: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        remote = Path(name) / "eval"
        push(local, remote)
        for path in (Path(name), remote):
            path.chmod(0o755)
        (local / "eval.py").write_text("new")
        args, pieces = question(local, remote)
        assert "no permission to write" in as_nobody(lambda: harness.harness_push_answer(args, Line(pieces)))["error"]
        assert tree(remote)["eval.py"][0] == HARNESS["eval.py"]
        assert as_nobody(lambda: harness.facts(str(remote), []))["writable"] is False


def test_a_push_that_fails_half_way_is_rolled_back(local: Path, tmp_path: Path) -> None:
    remote = tmp_path / "eval"
    push(local, remote)
    before = tree(remote)
    write_files(local, {"eval.py": "new", "aaa.py": "", "zzz": "a file"})
    (local / "run.sh").chmod(0o644)
    (local / "lib/util.py").unlink()
    args, pieces = question(local, remote)
    (remote / "zzz").mkdir()  # the last step meets a folder
    args["expected"]["zzz"] = {"path": "zzz", "mode": 0, "sha256": "folder", "size": 0}
    with pytest.raises(AgentError):
        harness.harness_push_answer(args, Line(pieces))
    assert tree(remote) == before
    (remote / "zzz").rmdir()
    assert state(local, remote) == "local_ahead" and not list((remote / ".orch").glob("saved/*"))


def test_a_crash_between_two_files_is_mended_by_the_same_push(local: Path, tmp_path: Path) -> None:
    remote = tmp_path / "eval"
    push(local, remote)
    write_files(local, {"eval.py": "new", "lib/util.py": "new"})
    (remote / "eval.py").write_text("new")  # as a killed push leaves it
    assert state(local, remote) == "local_ahead"
    assert push(local, remote)["saved"] is None and state(local, remote) == "in_sync"


def test_a_held_lock_names_its_holder(tmp_path: Path) -> None:
    place = str(tmp_path / "lock")
    with (
        lock.held(place, "sync-harness"),
        pytest.raises(AgentError, match=f"process {os.getpid()} on"),
        lock.held(place, "x", patience=0.1),
    ):
        pass
    with lock.held(place, "again"), open(place) as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_two_pushes_at_once_end_in_one_whole_harness(local: Path, tmp_path: Path) -> None:
    remote = tmp_path / "eval"
    other = write_files(tmp_path / "other", {name: text + "# other\n" for name, text in HARNESS.items()})
    questions = [question(local, remote), question(other, remote)]
    refused: list[AgentError] = []

    def one(args: dict[str, Any], pieces: list[bytes]) -> None:
        try:
            harness.harness_push_answer(args, Line(pieces))
        except AgentError as error:
            refused.append(error)

    threads = [threading.Thread(target=one, args=asked) for asked in questions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 1 and tree(remote) in (tree(local), tree(other))


def test_files_for_a_diff_come_whole_or_say_why_not(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.py": "text", "big.py": "x" * ((1 << 20) + 1)})
    found = {one["path"]: one for one in harness.read_files(str(tmp_path), ["a.py", "big.py", "none.py"])}
    assert base64.b64decode(found["a.py"]["data"]) == b"text"
    assert (found["big.py"]["why"], found["none.py"]["why"]) == ("large", "missing")


def test_extras_are_bounded_and_odd_names_are_shown_escaped(local: Path, tmp_path: Path) -> None:
    remote = tmp_path / "eval"
    push(local, remote)
    with open(os.fsencode(remote) + b"/new\nline\xff", "w"):
        pass
    facts = harness.facts(str(remote), manifest.build(str(local)))
    assert [one["path"] for one in facts["extras"]] == ["'new\\nline\\udcff'"]
    for number in range(600):
        (remote / f"{number}.txt").touch()
    facts = harness.facts(str(remote), manifest.build(str(local)))
    assert len(facts["extras"]) == 500 and facts["extras_cut"]


def test_two_who_planned_the_same_push_both_succeed(local: Path, tmp_path: Path) -> None:
    """Two commands typed at once: the second finds every file as it wants it."""
    remote = tmp_path / "eval"
    push(local, remote)
    (local / "eval.py").write_text("new")
    (local / "lib/util.py").unlink()
    plans = [question(local, remote) for _ in range(2)]
    answers = [harness.harness_push_answer(args, Line(pieces)) for args, pieces in plans]
    assert tree(remote) == tree(local) and state(local, remote) == "in_sync"
    assert [answer["saved"] for answer in answers] == [None, None]


def test_a_frame_that_takes_longer_than_the_allowed_silence_is_no_silence(tmp_path: Path) -> None:
    """On a line of a few kB/s the pieces of one frame keep the agent alive."""
    content = bytes(200)
    entry = {"path": "a", "mode": 0o644, "sha256": hashlib.sha256(content).hexdigest(), "size": 200}
    args = {"remote": str(tmp_path / "far"), "entries": [entry], "send": ["a"], "delete": [], "expected": {"a": None}}
    agent = subprocess.Popen(
        bundle.start_argv(sys.executable), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert agent.stdin and agent.stdout
    request = {"question": "harness_push", "role": "eval", "args": args, "beat": 5.0, "dead": 1.5}
    agent.stdin.write(bundle.preamble() + wire.encode_json(request))
    frame = wire.encode(wire.DATA, content)
    for at in range(0, len(frame), 40):
        agent.stdin.write(frame[at : at + 40])
        agent.stdin.flush()
        time.sleep(0.6)
    agent.stdin.write(wire.encode(wire.END))
    agent.stdin.flush()
    assert agent.wait(20) == 0
    agent.stdin.close()
    agent.stdout.close()
    assert (tmp_path / "far" / "a").read_bytes() == content
