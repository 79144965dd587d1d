"""The three-way comparison and its ends, between a project here and a folder that stands for a host."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from orchestrator import config, taken
from orchestrator.actions import localtree
from orchestrator.errors import OrchError, Refused, TransferError
from orchestrator.reports.documents import document, sync_body
from orchestrator.reports.schema import document_schema
from orchestrator.reports.tables import diff_lines
from orchestrator.ssh.choose import Connections
from orchestrator.workflows import sync_harness as story
from orchestrator.workflows.sync_harness import SyncReport

LINES = "".join(f"line {number}\n" for number in range(12))
FILES = {
    "eval.py": LINES,
    "lib/util.py": "VALUE = 1\n",
    "run.sh": "#!/bin/sh\n",
    "-n": "a leading dash\n",
    'it\'s "$(x)" é.py': "odd\n",
    "model.dat": "\0\1\2",
}


class Answer:
    """What the user would say."""

    def __init__(self, yes: bool) -> None:
        self.possible = yes

    def __call__(self, drift: Any, diffs: Any) -> bool:
        return self.possible


@dataclass
class Project:
    folder: Path
    connections: Connections

    @property
    def local(self) -> Path:
        return self.folder / "project" / "harness"

    @property
    def remote(self) -> Path:
        return self.folder / "host" / "eval"

    @property
    def inventory(self) -> config.Inventory:
        return config.load_inventory(self.folder / "project" / "hosts.yaml")

    @contextmanager
    def compared(self, *also: str) -> Iterator[SyncReport]:
        with story.compared(self.inventory, None, None, self.connections, also) as report:
            body = document("sync-harness", sync_body(report))
            jsonschema.validate(json.loads(json.dumps(body)), document_schema("sync-harness"))
            yield report

    def compare(self, *also: str) -> SyncReport:
        with self.compared(*also) as report:
            return report

    def state(self) -> str:
        return self.compare().drift.state

    def changes(self, *also: str) -> list[tuple[str, str, str]]:
        return [(c.path, c.change, c.side) for c in self.compare(*also).drift.files]

    def shown(self) -> str:
        report = self.compare()
        return str(diff_lines(report.diffs, report.drift))

    def sync(self, yes: bool = False) -> SyncReport:
        with self.compared() as report:
            return story.sync(report, Answer(yes))

    def keep(self, *also: str, yes: bool = False) -> SyncReport:
        with self.compared(*also) as report:
            return story.keep_remote(report, self.inventory, self.connections, yes)

    def merge(self) -> SyncReport:
        with self.compared() as report:
            return story.merge(report, self.inventory, self.connections)

    def git(self, *words: str) -> None:
        own = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(self.folder / "project")]
        subprocess.run(["git", *own, *words], check=True, capture_output=True)


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())


def tree(root: Path) -> dict[str, tuple[bytes, bool]]:
    return {
        str(path.relative_to(root)): (path.read_bytes(), os.access(path, os.X_OK))
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".orch" not in path.relative_to(root).parts
    }


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """Synced once."""
    host = f"{{roles: [eval], transport: local, root: {tmp_path}/host, python: {sys.executable}}}"
    write(tmp_path, "project/hosts.yaml", f"hosts:\n  box: {host}\nruns: {{}}\n")
    command = '["{python}", eval.py, "{checkpoint}", "{result}"]'
    write(tmp_path, "project/jobs/job.yaml", f"harness: {{local: harness, remote: ~/eval}}\ncommand: {command}\n")
    (tmp_path / "host").mkdir()
    for name, text in FILES.items():
        write(tmp_path / "project" / "harness", name, text)
    (tmp_path / "project/harness/run.sh").chmod(0o755)
    with Connections(config.load_inventory(tmp_path / "project/hosts.yaml").timeouts) as connections:
        built = Project(folder=tmp_path, connections=connections)
        assert built.sync().pushed
        yield built


def edit(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


# -- states -----------------------------------------------------------------------------------------------------


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


# -- renames ----------------------------------------------------------------------------------------------------


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


# -- what is shown ----------------------------------------------------------------------------------------------


def test_each_difference_is_shown_as_what_it_is(project: Project) -> None:
    edit(project.remote / "eval.py", "line 3\n", "theirs\n")
    (project.remote / "eval.py").chmod(0o755)
    write(project.local, "model.dat", "\0\2")
    (project.local / "run.sh").chmod(0o644)
    shown = project.shown()
    assert "-theirs" in shown and "+line 3" in shown and "mode 755 there, 644 here" in shown
    assert shown.count("sha256 ") == 2 and "3 bytes there" in shown and "2 bytes here" in shown


# -- merging ----------------------------------------------------------------------------------------------------


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


# -- the local tree ---------------------------------------------------------------------------------------------


def test_uncommitted_edits_of_the_same_file_are_not_replaced_unless_it_is_said(project: Project) -> None:
    project.git("init", "-q")
    project.git("add", "-A")
    project.git("commit", "-qm", "first")
    edit(project.remote / "eval.py", "line 1\n", "theirs\n")
    edit(project.local / "eval.py", "line 9\n", "mine, not committed\n")
    write(project.local, "lib/util.py", "VALUE = 3\n")
    mine = (project.local / "eval.py").read_text()
    with pytest.raises(Refused, match=r"not committed in git: eval\.py; nothing was changed") as refused:
        project.keep()
    assert "--yes" in refused.value.hint and (project.local / "eval.py").read_text() == mine
    project.git("add", "-A")
    project.git("commit", "-qm", "second")
    done = project.keep()
    assert done.pulled and done.pulled.git
    status = subprocess.run(
        ["git", "-C", project.local, "status", "--porcelain"], capture_output=True, text=True, check=True
    )
    assert status.stdout == " M harness/eval.py\n", "one change to review, and nothing of orch's own"


def test_with_consent_uncommitted_edits_are_saved_and_replaced(project: Project) -> None:
    project.git("init", "-q")
    edit(project.remote / "eval.py", "line 1\n", "theirs\n")
    with pytest.raises(Refused, match="not committed"):
        project.keep()
    done = project.keep(yes=True)
    assert done.pulled and Path(done.pulled.saved or "", "eval.py").read_text() == LINES


@pytest.mark.parametrize("place", ["file", "parent", "own"])
def test_nothing_is_written_through_a_local_link_that_leads_out(project: Project, place: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    write(outside, "util.py", "keep me")
    edit(project.remote / "lib/util.py", "1", "2")
    report = project.compare()
    if place == "file":
        (project.local / "lib/util.py").unlink()
        (project.local / "lib/util.py").symlink_to(outside / "util.py")
    elif place == "parent":
        (project.local / "lib/util.py").unlink()
        (project.local / "lib").rmdir()
        (project.local / "lib").symlink_to(outside)
    else:
        (project.local / ".orch").symlink_to(outside)
    with pytest.raises(Refused):
        story.keep_remote(report, project.inventory, project.connections, True)
    assert tree(outside) == {"util.py": (b"keep me", False)}


def test_a_local_file_that_changes_meanwhile_is_not_replaced(project: Project) -> None:
    edit(project.remote / "eval.py", "line 1\n", "theirs\n")
    report = project.compare()
    write(project.local, "eval.py", "typed a moment ago")
    with pytest.raises(Refused, match="changed meanwhile"):
        story.keep_remote(report, project.inventory, project.connections, True)
    assert (project.local / "eval.py").read_text() == "typed a moment ago"


def test_a_file_of_the_host_that_changes_meanwhile_is_not_taken(project: Project) -> None:
    edit(project.remote / "eval.py", "line 1\n", "theirs\n")
    report = project.compare()
    write(project.remote, "eval.py", "and again")
    with pytest.raises(Refused, match="changed meanwhile"):
        story.keep_remote(report, project.inventory, project.connections, True)
    assert (project.local / "eval.py").read_text() == LINES


def test_an_ignored_local_file_of_the_same_name_is_not_replaced(project: Project) -> None:
    write(project.local, "kept.py", "mine, ignored")
    write(project.local, ".orchignore", "kept.py\n")
    write(project.remote, "kept.py", "theirs")
    with pytest.raises(Refused, match="is there already"):
        project.keep("kept.py")
    assert (project.local / "kept.py").read_text() == "mine, ignored"


def test_a_link_on_the_host_that_leads_out_is_not_brought_here(project: Project, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (project.remote / "eval.py").unlink()
    (project.remote / "eval.py").symlink_to(tmp_path / "secret")
    assert project.state() == "remote_edited" and "a link out of the harness" in project.shown()
    with pytest.raises(Refused, match=r"eval\.py is a link"):
        project.keep()
    assert (project.local / "eval.py").read_text() == LINES
    assert project.sync(yes=True).pushed and (tmp_path / "secret").read_text() == "secret"


def test_an_installed_harness_is_never_written_into(project: Project) -> None:
    import remote_payload

    report = project.compare()
    own = Path(remote_payload.__file__).parent / "harness"
    edited = story.replace(report, job=story.replace(report.job, harness_local=own))
    with pytest.raises(Refused, match="a part of orch itself"):
        localtree.check_own(edited.job, project.inventory)
    localtree.check_own(report.job, project.inventory)


# -- a host that lies -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["../evil.py", "/tmp/evil.py", "lib/../../evil.py", ".orch/taken.json", "", "a\0b", 7])
def test_no_path_of_a_lying_host_gets_as_far_as_the_local_folder(project: Project, path: Any) -> None:
    from orchestrator.answers import read_harness
    from remote_payload.agent import harness, manifest

    found = harness.facts(str(project.remote), manifest.build(str(project.local)))
    found["files"].append(dict(found["files"][0], path=path))
    with pytest.raises(TransferError, match="may not be used"):
        read_harness("box", found)


@pytest.mark.parametrize("change", [{"mode": 0o4755}, {"size": -1}, {"sha256": "../x"}, {"size": "1"}])
def test_a_row_that_makes_no_sense_is_not_believed(project: Project, change: dict[str, Any]) -> None:
    from orchestrator.answers import read_harness
    from remote_payload.agent import harness, manifest

    found = harness.facts(str(project.remote), manifest.build(str(project.local)))
    found["files"].append({**found["files"][0], "path": "x.py", **change})
    with pytest.raises(TransferError, match="makes no sense"):
        read_harness("box", found)


def test_an_error_names_the_host(project: Project) -> None:
    (project.remote / ".orch/synced.json").write_text('{"schema": 99}')
    with pytest.raises(OrchError, match="newer orch"):
        project.compare()


# -- killed on the way ------------------------------------------------------------------------------------------


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


# -- as it is typed ---------------------------------------------------------------------------------------------


def _typed(project: Project, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from orchestrator.cli import main; main()", "sync-harness", *words]
    root = Path(config.__file__).parents[2]
    own = {"PYTHONPATH": str(root), "ORCH_HOME": str(project.folder / "state")}
    return subprocess.run(
        command, cwd=project.folder / "project", env={**os.environ, **own}, capture_output=True, text=True
    )


def test_the_command_says_what_was_brought_where_and_what_to_type_next(project: Project) -> None:
    edit(project.remote / "eval.py", "line 1\n", "theirs\n")
    assert _typed(project, "--keep-remote", "--merge").returncode == 2
    assert _typed(project, "--add", "x").returncode == 2
    assert _typed(project, "--check").returncode == 1
    refused = _typed(project)
    assert refused.returncode == 6 and "--keep-remote" in refused.stderr
    kept = _typed(project, "--keep-remote")
    assert kept.returncode == 0 and f"brought 1 of the changes on box into {project.local}" in kept.stdout
    assert "what was here is saved in" in kept.stdout and "then: orch sync-harness job" in kept.stderr
    edit(project.local / "eval.py", "line 5\n", "mine\n")
    edit(project.remote / "eval.py", "line 5\n", "theirs too\n")
    merged = _typed(project, "--merge")
    assert merged.returncode == 6 and "conflicts in eval.py; nothing was pushed" in merged.stderr
    assert "<<<<<<< to >>>>>>>" in merged.stderr


def test_what_is_left_out_is_named(project: Project) -> None:
    (project.local / "out.py").symlink_to("/etc/hostname")
    (project.local / "dangling").symlink_to("nowhere")
    os.mkfifo(project.remote / "pipe")
    done = _typed(project)
    assert done.returncode == 0 and done.stderr.count("is left out") == 3
    assert "'out.py'" in done.stderr and "'pipe'" in done.stderr


def test_a_local_folder_that_can_t_be_written_is_said_and_stays_as_it_is(project: Project) -> None:
    kept = tree(project.local)
    if subprocess.run(["mount", "--bind", str(project.local), str(project.local)]).returncode:
        pytest.skip("needs root to mount a folder")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(project.local)], check=True)
        edit(project.remote / "eval.py", "line 1\n", "theirs\n")
        with pytest.raises(Refused, match="read-only") as refused:
            project.keep()
        assert "on the host" not in refused.value.hint and tree(project.local) == kept
    finally:
        subprocess.run(["umount", "-l", str(project.local)], check=True)
