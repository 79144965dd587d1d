"""The source tree's git state, read without writing: real repositories."""

from __future__ import annotations

import os
import subprocess

import pytest
from observing import Spawner

from remote_payload.agent import source


def git(folder, *arguments: str) -> str:
    settings = ["-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", "-C", folder, *settings, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "dflash"
    (folder / "src").mkdir(parents=True)
    git(folder, "init", "-q")
    (folder / "train.py").write_text("a\nb\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "First")
    return folder


def state(folder):
    return source.git_state(str(folder), Spawner())


def everything(folder) -> dict[str, tuple[int, int, bytes]]:
    found = {}
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            status = os.stat(path)
            with open(path, "rb") as file:
                found[path] = (status.st_mtime_ns, status.st_ino, file.read())
        found[root] = (os.stat(root).st_mtime_ns, 0, b"")
    return found


def test_commit_branch_and_changes_are_told_and_nothing_is_written(repository):
    commit = git(repository, "rev-parse", "HEAD")
    assert state(repository) == {"commit": commit, "branch": "main", "dirty": "", "error": None}
    (repository / "train.py").write_text("a\nc\nd\n")
    os.utime(repository / "train.py", (1, 1))  # the index is out of date: an ordinary status would rewrite it
    before = everything(repository)
    told = state(repository / "src")
    assert (told["commit"], told["dirty"]) == (commit, "1 file changed, 2 insertions(+), 1 deletion(-)")
    assert everything(repository) == before


def test_packed_refs_worktrees_and_a_detached_head_are_read(repository, tmp_path):
    commit = git(repository, "rev-parse", "HEAD")
    git(repository, "pack-refs", "--all")
    assert (state(repository)["commit"], state(repository)["branch"]) == (commit, "main")
    git(repository, "worktree", "add", "-q", "-b", "try/it", str(tmp_path / "other"))
    assert (state(tmp_path / "other")["commit"], state(tmp_path / "other")["branch"]) == (commit, "try/it")
    git(repository, "checkout", "-q", "--detach")
    assert (state(repository)["commit"], state(repository)["branch"]) == (commit, None)


def test_a_repositorys_own_settings_start_no_program(repository, tmp_path):
    trap = tmp_path / "trap"
    trap.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/sprung\ncat\n')
    trap.chmod(0o755)
    for name in ("core.fsmonitor", "diff.external", "filter.x.clean", "filter.x.process", "diff.x.textconv"):
        git(repository, "config", name, str(trap))
    git(repository, "config", "filter.x.required", "true")
    (repository / ".git" / "info" / "attributes").write_text("*.py filter=x diff=x\n")
    (repository / "train.py").write_text("changed\n")
    (tmp_path / "sprung").unlink(missing_ok=True)
    assert state(repository)["dirty"].startswith("1 file changed")
    assert not (tmp_path / "sprung").exists()


def test_what_is_no_repository_is_said(tmp_path, repository):
    assert state("/proc")["error"] == "/proc: no git repository"
    assert state(tmp_path / "none")["error"].endswith("no such folder")
    git(tmp_path, "init", "-q", "empty")
    told = state(tmp_path / "empty")
    assert (told["commit"], told["branch"], told["dirty"]) == (None, "main", None)
    assert "no commit" in told["error"]


def test_a_host_without_git_still_tells_the_commit(repository, tmp_path, monkeypatch):
    commit = git(repository, "rev-parse", "HEAD")
    monkeypatch.setenv("PATH", str(tmp_path))
    told = state(repository)
    assert (told["commit"], told["dirty"]) == (commit, None)
    assert "git can't be started" in told["error"]


@pytest.mark.skipif(os.geteuid() != 0, reason="another owner needs root")
def test_another_users_repository_is_read(repository):
    for path in everything(repository):
        os.chown(path, 65534, 65534)
    assert state(repository)["dirty"] == ""
