"""Merging what both sides edited, and what a kill leaves of that."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from syncing import LINES, Answer, Project, edit, tree, write

from orchestrator import taken
from orchestrator.errors import Refused
from orchestrator.workflows import sync_harness as story

# -- merging ----------------------------------------------------------------------------------------------------------


def test_edits_of_different_places_are_merged_and_pushed(project: Project) -> None:
    edit(project.local / "eval.py", "line 1\n", "mine\n")
    edit(project.remote / "eval.py", "line 9\n", "theirs\n")
    write(project.remote, "lib/util.py", "VALUE = 2\n")
    write(project.local, "new.py", "new")
    done = project.merge()
    assert done.pulled and done.pulled.paths == ("eval.py", "lib/util.py") and done.pulled.conflicts == ()
    assert done.pushed and project.state() == "in_sync" and tree(project.local) == tree(project.remote)
    text = (project.local / "eval.py").read_text()
    assert "mine\n" in text and "theirs\n" in text
    assert (project.local / "lib/util.py").read_text() == "VALUE = 2\n" and (project.remote / "new.py").exists()
    assert done.pushed.saved and "theirs" in Path(done.pushed.saved, "eval.py").read_text()


def test_conflicts_are_written_here_and_nothing_is_pushed_before_they_are_resolved(project: Project) -> None:
    edit(project.local / "eval.py", "line 1\n", "mine\n")
    edit(project.remote / "eval.py", "line 1\n", "theirs\n")
    there = tree(project.remote)
    done = project.merge()
    assert done.pulled and done.pulled.conflicts == ("eval.py",) and done.pushed is None
    marked = (project.local / "eval.py").read_text()
    assert "<<<<<<< local\nmine\n=======\ntheirs\n>>>>>>> box\n" in marked
    for act in (project.sync, lambda: project.sync(yes=True), project.merge, project.keep):
        with pytest.raises(Refused, match=r"conflicts of the last merge stand in eval\.py"):
            act()
    assert tree(project.remote) == there
    write(project.local, "eval.py", LINES.replace("line 1\n", "both\n"))
    assert project.state() == "local_ahead"
    assert project.sync().pushed and tree(project.remote) == tree(project.local)
    assert taken.read(done.job, done.host) == taken.NOTHING


def test_a_merge_that_is_given_up_leaves_the_host_s_edit_an_edit(project: Project) -> None:
    edit(project.local / "eval.py", "line 1\n", "mine\n")
    mine = (project.local / "eval.py").read_text()
    edit(project.remote / "eval.py", "line 1\n", "theirs\n")
    project.merge()
    write(project.local, "eval.py", mine)
    assert project.state() == "both"


@pytest.mark.parametrize("what", ["binary", "deleted here", "deleted there", "no base"])
def test_what_can_t_be_merged_is_said_before_anything_is_touched(project: Project, what: str) -> None:
    if what == "binary":
        write(project.local, "model.dat", "\0mine")
        write(project.remote, "model.dat", "\0theirs")
    elif what == "deleted here":
        (project.local / "eval.py").unlink()
        write(project.remote, "eval.py", "theirs")
    elif what == "deleted there":
        (project.remote / "eval.py").unlink()
        write(project.local, "eval.py", "mine")
    else:
        for kept in (project.remote / ".orch/base").iterdir():
            kept.write_bytes(b"damaged")
        write(project.local, "eval.py", "mine")
        write(project.remote, "eval.py", "theirs")
    write(project.remote, "lib/util.py", "VALUE = 2\n")
    before = tree(project.local), tree(project.remote)
    with pytest.raises(Refused, match="can't be merged"):
        project.merge()
    assert (tree(project.local), tree(project.remote)) == before


def test_a_merge_takes_the_mode_that_one_side_changed(project: Project) -> None:
    edit(project.local / "eval.py", "line 1\n", "mine\n")
    edit(project.remote / "eval.py", "line 9\n", "theirs\n")
    (project.remote / "eval.py").chmod(0o755)
    project.merge()
    assert os.access(project.local / "eval.py", os.X_OK) and os.access(project.remote / "eval.py", os.X_OK)


# -- killed on the way ------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_merge_killed_at_any_moment_loses_nothing_and_pushes_no_markers(project: Project) -> None:
    edit(project.local / "eval.py", "line 1\n", "mine\n")
    edit(project.remote / "eval.py", "line 1\n", "theirs\n")
    write(project.remote, "lib/util.py", "VALUE = 2\n")
    mine, theirs = tree(project.local), tree(project.remote)
    moment, went_on = 0, True
    while went_on:
        went_on = _killed_at(moment, project.merge)
        found = project.compare().drift
        marked = b"<<<<<<<" in (project.local / "eval.py").read_bytes()
        assert tree(project.remote) == theirs
        if marked:
            assert found.unresolved == ("eval.py",)
        else:
            assert found.state == "both" and (project.local / "eval.py").read_bytes() == mine["eval.py"][0]
        assert (project.local / "lib/util.py").read_text() in ("VALUE = 1\n", "VALUE = 2\n")
        for path, (data, _) in mine.items():
            (project.local / path).write_bytes(data)
        moment += 1
    assert moment > 8


def _killed_at(moment: int, act: Callable[[], object]) -> bool:
    """Do this in a process that kills itself at its n-th change of the local tree; whether it came to that."""
    pid = os.fork()
    if pid == 0:
        left = moment

        def count(event: str, args: Any) -> None:
            nonlocal left
            if event in ("os.rename", "os.remove", "os.chmod", "os.link", "os.mkdir"):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        try:
            act()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def test_conflicts_of_a_merge_with_one_host_are_pushed_to_no_other(project: Project) -> None:
    hosts = project.folder / "project/hosts.yaml"
    other = hosts.read_text().replace("box:", "other:").replace("/host,", "/other,").replace("hosts:\n", "")
    hosts.write_text(hosts.read_text().replace("runs:", other.replace("runs: {}\n", "") + "runs:"))
    (project.folder / "other").mkdir()
    edit(project.local / "eval.py", "line 1\n", "mine\n")
    edit(project.remote / "eval.py", "line 1\n", "theirs\n")
    with story.compared(project.inventory, None, "box", project.connections) as report:
        assert story.merge(report, project.inventory, project.connections).pulled
    with (
        story.compared(project.inventory, None, "other", project.connections) as report,
        pytest.raises(Refused, match="conflicts of the last merge"),
    ):
        story.sync(report, Answer(True))
    assert not (project.folder / "other/eval").exists()


def test_a_local_file_that_vanishes_before_it_is_sent_is_said(project: Project) -> None:
    write(project.local, "eval.py", "newer")
    there = tree(project.remote)
    with project.compared() as report:
        (project.local / "eval.py").unlink()
        with pytest.raises(Refused, match=r"eval\.py: No such file .* nothing was pushed"):
            story.sync(report, Answer(True))
    assert tree(project.remote) == there
