"""A push that is killed at any moment, and folders that can't take one: never half a file, nor an edit of nobody's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from evalhost import HARNESS, Line, write_files

from remote_payload.agent import harness, lastsync, manifest, replace
from remote_payload.agent.errors import AgentError
from remote_payload.agent.replace import Replacement

EVENTS = ("os.rename", "os.remove", "os.chmod", "os.link", "os.mkdir", "os.rmdir")


def ask(local: Path, remote: Path) -> tuple[dict[str, Any], list[bytes]]:
    """What a controller asks to make `remote` equal to `local`, and the bytes it sends."""
    mine = manifest.build(str(local))
    theirs = {entry["path"]: entry for entry in harness.facts(str(remote), mine)["files"]}
    send = [one["path"] for one in mine if theirs.get(one["path"]) != one]
    delete = [path for path in theirs if path not in {one["path"] for one in mine}]
    args: dict[str, Any] = {"remote": str(remote), "entries": mine, "send": send, "delete": delete}
    args["expected"] = {path: theirs.get(path) for path in [*send, *delete]}
    return args, [data for path in send if (data := (local / path).read_bytes())]


def push(local: Path, remote: Path) -> dict[str, Any]:
    args, pieces = ask(local, remote)
    return harness.harness_push_answer(args, Line(pieces))


def compared(local: Path, remote: Path) -> dict[str, Any]:
    mine = manifest.build(str(local))
    facts = harness.facts(str(remote), mine)
    return manifest.compare(facts["base"], mine, facts["files"])


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and ".orch" not in path.relative_to(root).parts
    }


def killed_at(moment: int, act: Callable[[], object]) -> bool:
    """Do this in a process that kills itself at its n-th change of a file system; whether it came to that."""
    pid = os.fork()
    if pid == 0:
        left = moment

        def count(event: str, args: object) -> None:
            nonlocal left
            if event in EVENTS:
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        try:
            act()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def push_killed_at(moment: int, args: dict[str, Any], pieces: list[bytes]) -> bool:
    return killed_at(moment, lambda: harness.harness_push_answer(args, Line(pieces)))


def just_begun(path: Path) -> bool:
    """A folder whose writer was killed before it could say who it is; it goes after a minute."""
    return path.name.startswith("incoming") and not (path / "writer.json").exists()


def test_a_push_killed_at_any_moment_is_told_from_an_edit_and_mended_by_the_next_one(tmp_path: Path) -> None:
    moment, went_on = 0, True
    while went_on:
        local, remote = write_files(tmp_path / f"l{moment}", HARNESS), tmp_path / f"r{moment}"
        push(local, remote)
        write_files(local, {"eval.py": "new\n", "new/deep.py": "new\n", "a.py": "new\n"})
        (local / "lib/util.py").unlink()
        (local / "run.sh").chmod(0o644)
        args, pieces = ask(local, remote)
        went_on = push_killed_at(moment, args, pieces)
        for path, data in contents(remote).items():
            assert data in (HARNESS.get(path, "").encode(), b"new\n"), f"{path} is half a file"
        found = compared(local, remote)
        assert found["state"] in ("local_ahead", "in_sync"), (moment, found)
        write_files(local, {"eval.py": "newer\n", "a.py": "newer\n"})
        assert compared(local, remote)["state"] == "local_ahead", moment
        assert push(local, remote)["saved"] is None, moment
        assert contents(remote) == contents(local) and compared(local, remote)["state"] == "in_sync"
        left = {path.name for path in (remote / ".orch").iterdir() if not just_begun(path)}
        assert left == {"lock", "base", "synced.json"}, (moment, left)
        moment += 1
    assert moment > 15, "there were many moments"


def test_an_edit_made_after_a_push_was_killed_is_still_an_edit(tmp_path: Path) -> None:
    local, remote = write_files(tmp_path / "l", HARNESS), tmp_path / "r"
    push(local, remote)
    write_files(local, {"eval.py": "new\n", "lib/util.py": "new\n", "a.py": "new\n"})
    args, pieces = ask(local, remote)
    moments = iter(range(100))
    while not ((remote / ".orch/syncing.json").exists() and (remote / "a.py").exists()):
        push_killed_at(next(moments), args, pieces)
        args, pieces = ask(local, remote)
    write_files(remote, {"a.py": "a colleague's\n"})
    found = compared(local, remote)
    assert ("a.py", "both") in [(one["path"], one["side"]) for one in found["files"]]
    saved = Path(push(local, remote)["saved"])
    assert (saved / "a.py").read_text() == "a colleague's\n"


def test_the_first_push_killed_half_way_asks_nobody_afterwards(tmp_path: Path) -> None:
    local, remote = write_files(tmp_path / "l", HARNESS), tmp_path / "r"
    args, pieces = ask(local, remote)
    for moment in range(100):
        if (remote / "eval.py").exists():
            break
        push_killed_at(moment, args, pieces)
    assert compared(local, remote)["state"] in ("local_ahead", "in_sync")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A small disk, mounted as it is asked for; asked again, it is mounted anew with its files."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = False

    def mount(options: str) -> Path:
        nonlocal mounted
        how = ["-o", f"remount,{options}"] if mounted else ["-t", "tmpfs", "-o", f"size=1m,{options}", "tmpfs"]
        if subprocess.run(["mount", *how, str(place)], capture_output=True).returncode:
            pytest.skip("needs root to mount a disk")
        mounted = True
        return place

    yield mount
    if mounted:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_read_only_file_system_is_said_to_be_one(tmp_path: Path, disk: Callable[[str], Path]) -> None:
    local, remote = write_files(tmp_path / "l", HARNESS), disk("rw") / "eval"
    push(local, remote)
    disk("ro")
    write_files(local, {"eval.py": "new"})
    with pytest.raises(AgentError, match="the file system is read-only; the harness there is as it was"):
        push(local, remote)
    assert harness.facts(str(remote), [])["writable"] is False


def test_a_file_system_without_execution_keeps_the_modes_all_the_same(
    tmp_path: Path, disk: Callable[[str], Path]
) -> None:
    local, remote = write_files(tmp_path / "l", HARNESS), disk("noexec") / "eval"
    push(local, remote)
    assert compared(local, remote)["state"] == "in_sync" and (remote / "run.sh").stat().st_mode & 0o100


@pytest.mark.parametrize("spare", [0, 1, 2, 3, 5, 8, 12])
def test_a_disk_that_fills_up_anywhere_leaves_the_old_harness_or_the_new_one(
    tmp_path: Path, disk: Callable[[str], Path], spare: int
) -> None:
    local, remote = write_files(tmp_path / "l", HARNESS), disk("rw") / "eval"
    push(local, remote)
    before = contents(remote)
    write_files(local, {"eval.py": "new" * 2000, "b.py": "b" * 6000})
    args, pieces = ask(local, remote)
    free = os.statvfs(remote).f_bavail - spare
    with (remote.parent / "ballast").open("wb") as ballast:
        ballast.write(bytes(4096 * max(free, 0)))
    try:
        harness.harness_push_answer(args, Line(pieces))
    except AgentError as error:
        assert "disk is full" in error.message and contents(remote) == before
        (remote.parent / "ballast").unlink()
        assert compared(local, remote)["state"] == "local_ahead" and push(local, remote)["saved"] is None
    assert contents(remote) == contents(local)


def test_a_new_file_does_not_replace_one_that_has_its_place_already(tmp_path: Path) -> None:
    """As where a file system takes two names of the harness for one."""
    local, remote = write_files(tmp_path / "l", HARNESS), tmp_path / "r"
    push(local, remote)
    write_files(local, {"Eval.py": "another", "a.py": "first"})
    args, pieces = ask(local, remote)
    with replace.opened(str(remote), "test") as incoming:
        swap = Replacement(str(remote), incoming, args["entries"], args["send"], args["delete"], args["expected"])
        swap.receive(pieces)
        swap.verify()
        swap.save(lambda path, entry: True)
        (remote / "Eval.py").write_text("not to be lost")
        (remote / "Eval.py").rename(remote / args["send"][-1])
        with pytest.raises(AgentError, match="the same name as another file"):
            swap.swap(lambda: None)
    assert (remote / args["send"][-1]).read_text() == "not to be lost"
    assert contents(remote) == {**{k: v.encode() for k, v in HARNESS.items()}, args["send"][-1]: b"not to be lost"}


def test_a_local_file_that_vanishes_meanwhile_is_left_out_and_one_that_shrinks_stops_the_push(tmp_path: Path) -> None:
    local, remote = write_files(tmp_path / "l", HARNESS), tmp_path / "r"
    (local / "gone.py").symlink_to("eval.py")
    notes: list[str] = []
    walked = manifest.walk(str(local), manifest.rules_of(str(local)), notes)
    assert ("gone.py" in [path for path, _ in walked]) and notes == []
    args, pieces = ask(local, remote)
    with pytest.raises(AgentError, match="too early"):
        harness.harness_push_answer(args, Line(pieces[:-1]))
    assert contents(remote) == {}


def test_contents_of_the_last_sync_are_kept_and_only_those(tmp_path: Path) -> None:
    local, remote = write_files(tmp_path / "l", HARNESS), tmp_path / "r"
    push(local, remote)
    old = manifest.build(str(local))[0]["sha256"]
    assert lastsync.content_of(str(remote), old) == HARNESS["eval.py"].encode()
    write_files(local, {"eval.py": "new"})
    (local / "big.py").write_bytes(b"#" * (lastsync.CONTENT_LIMIT + 1))
    push(local, remote)
    assert lastsync.content_of(str(remote), old) is None
    kept = {path.name for path in (remote / ".orch/base").iterdir()}
    assert kept == {one["sha256"] for one in manifest.build(str(local)) if one["path"] != "big.py"}
    for name in ("../synced.json", "x" * 64, ""):
        assert lastsync.content_of(str(remote), name) is None
