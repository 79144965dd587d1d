"""The states of the three-way comparison, and how each is shown and ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from syncing import LINES, Project, edit, tree, write

from orchestrator.errors import Refused

# -- states -----------------------------------------------------------------------------------------------------------


def test_after_a_sync_both_sides_are_the_same_odd_names_and_modes_included(project: Project) -> None:
    assert project.state() == "in_sync" and tree(project.local) == tree(project.remote)
    assert project.sync().pushed is None


LOCAL: dict[str, tuple[Callable[[Path], None], tuple[str, str]]] = {
    "edited": (lambda root: edit(root / "eval.py", "line 3", "LINE 3"), ("eval.py", "modified")),
    "odd": (lambda root: write(root, "-n", "edited"), ("-n", "modified")),
    "added": (lambda root: write(root, "new dir/$new.py", "new"), ("new dir/$new.py", "added")),
    "deleted": (lambda root: (root / "lib/util.py").unlink(), ("lib/util.py", "deleted")),
    "mode": (lambda root: (root / "eval.py").chmod(0o755), ("eval.py", "mode")),
    "binary": (lambda root: write(root, "model.dat", "\0\2"), ("model.dat", "modified")),
}


@pytest.mark.parametrize("name", LOCAL)
def test_what_only_the_local_side_did_is_local_ahead_and_pushed_without_a_question(project: Project, name: str) -> None:
    act, (path, change) = LOCAL[name]
    act(project.local)
    assert project.state() == "local_ahead" and project.changes() == [(path, change, "local")]
    done = project.sync()
    assert done.pushed and done.pushed.paths == (path,) and done.pushed.saved is None
    assert project.state() == "in_sync" and tree(project.local) == tree(project.remote)


REMOTE = {name: case for name, case in LOCAL.items() if name != "added"}


@pytest.mark.parametrize("name", REMOTE)
def test_what_only_the_host_did_stops_everything_until_it_is_kept(project: Project, name: str) -> None:
    act, (path, change) = REMOTE[name]
    act(project.remote)
    before = tree(project.local), tree(project.remote)
    assert project.state() == "remote_edited" and project.changes() == [(path, change, "remote")]
    with pytest.raises(Refused, match="nothing was changed") as refused:
        project.sync()
    assert all(way in refused.value.hint for way in ("--keep-remote", "--merge", "--take-local"))
    assert (tree(project.local), tree(project.remote)) == before
    done = project.keep()
    assert done.pulled and done.pulled.paths == (path,)
    assert tree(project.local) == before[1] == tree(project.remote)
    if change != "mode":
        assert done.pulled.saved and Path(done.pulled.saved, path).read_bytes() == before[0][path][0]
    assert project.state() == "in_sync"
    project.sync()
    write(project.local, "eval.py", "newer")
    assert project.state() == "local_ahead", "what was taken counts as synced"


@pytest.mark.parametrize("name", REMOTE)
def test_taking_ours_saves_theirs_beside_first(project: Project, name: str) -> None:
    act, (path, change) = REMOTE[name]
    act(project.remote)
    theirs = tree(project.remote)
    done = project.sync(yes=True)
    assert done.pushed and tree(project.local) == tree(project.remote)
    if change not in ("mode", "deleted"):
        assert done.pushed.saved and Path(done.pushed.saved, path).read_bytes() == theirs[path][0]


def test_edits_of_both_sides_are_both_and_a_host_version_can_be_kept_or_lost_on_purpose_only(project: Project) -> None:
    edit(project.local / "eval.py", "line 1\n", "mine\n")
    edit(project.remote / "eval.py", "line 1\n", "theirs\n")
    mine = (project.local / "eval.py").read_bytes()
    assert project.state() == "both" and project.changes() == [("eval.py", "modified", "both")]
    with pytest.raises(Refused):
        project.sync()
    done = project.keep()
    assert done.pulled and Path(done.pulled.saved or "", "eval.py").read_bytes() == mine
    assert b"theirs" in (project.local / "eval.py").read_bytes()


def test_a_local_file_that_goes_back_makes_the_kept_edit_an_edit_again(project: Project) -> None:
    edit(project.remote / "eval.py", "line 1\n", "theirs\n")
    project.keep()
    write(project.local, "eval.py", LINES)
    assert project.state() == "remote_edited"
    write(project.local, "eval.py", "something newer")
    assert project.state() == "local_ahead"
    pushed = project.sync().pushed
    assert pushed and pushed.saved and "theirs" in Path(pushed.saved, "eval.py").read_text()
    edit(project.remote / "eval.py", "newer", "edited again")
    assert project.state() == "remote_edited"


def test_a_folder_that_was_never_synced_can_be_kept_too(project: Project) -> None:
    (project.remote / ".orch/synced.json").unlink()
    edit(project.remote / "eval.py", "line 1\n", "theirs\n")
    write(project.local, "only here.py", "mine")
    assert project.state() == "unknown"
    with pytest.raises(Refused, match="never synced"):
        project.merge()
    project.keep()
    assert project.state() == "local_ahead" and project.changes() == [("only here.py", "added", "local")]
    assert project.sync().pushed and tree(project.local) == tree(project.remote)


def test_sides_that_became_equal_by_other_ways_count_as_synced(project: Project) -> None:
    (project.remote / ".orch/synced.json").unlink()
    assert project.state() == "in_sync"
    project.sync()
    write(project.local, "eval.py", "newer")
    assert project.state() == "local_ahead"


# -- renames ----------------------------------------------------------------------------------------------------------


def test_a_file_renamed_here_is_shown_as_that(project: Project) -> None:
    (project.local / "eval.py").rename(project.local / "evaluate.py")
    assert "renamed   eval.py -> evaluate.py  [local]" in project.shown()
    project.sync()
    assert tree(project.local) == tree(project.remote)


def test_a_file_renamed_on_the_host_is_shown_as_that_and_follows_here(project: Project) -> None:
    (project.remote / "lib/util.py").rename(project.remote / "helper.py")
    assert project.state() == "remote_edited"
    assert "renamed   lib/util.py -> helper.py  [remote]" in project.shown()
    done = project.keep()
    assert done.pulled and set(done.pulled.paths) == {"helper.py", "lib/util.py"}
    assert tree(project.local) == tree(project.remote) and not (project.local / "lib").exists()
    assert project.state() == "in_sync"


def test_a_file_that_only_the_host_has_stays_there_unless_it_is_asked_for(project: Project) -> None:
    write(project.remote, "helper.py", "theirs")
    assert project.changes() == [("helper.py", "extra", "remote")] and project.state() == "in_sync"
    assert project.changes("helper.py") == [("helper.py", "added", "remote")]
    project.keep("helper.py")
    assert tree(project.local) == tree(project.remote)
    assert project.state() == "in_sync"


# -- what is shown ----------------------------------------------------------------------------------------------------


def test_each_difference_is_shown_as_what_it_is(project: Project) -> None:
    edit(project.remote / "eval.py", "line 3\n", "theirs\n")
    (project.remote / "eval.py").chmod(0o755)
    write(project.local, "model.dat", "\0\2")
    (project.local / "run.sh").chmod(0o644)
    shown = project.shown()
    assert "-theirs" in shown and "+line 3" in shown and "mode 755 there, 644 here" in shown
    assert shown.count("sha256 ") == 2 and "3 bytes there" in shown and "2 bytes here" in shown
