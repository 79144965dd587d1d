"""What a sync may and may not do to the local harness folder, whatever the host says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from syncing import LINES, Project, edit, tree, write

from orchestrator import config
from orchestrator.actions import localtree
from orchestrator.errors import ConfigError, OrchError, Refused, TransferError
from orchestrator.workflows import sync_harness as story

# -- the local tree ---------------------------------------------------------------------------------------------------


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


# -- a host that lies -------------------------------------------------------------------------------------------------


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


# -- as it is typed ---------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("name", ["new\nline.py", "latin-\udce9.py", "bell\x07"])
def test_an_odd_name_on_the_host_is_shown_escaped_and_can_t_be_brought_here(project: Project, name: str) -> None:
    with open(os.fsencode(project.remote / name), "w"):
        pass
    (change,) = project.compare().drift.files
    assert change.change == "extra" and change.path.isprintable() and change.path.isascii()
    with pytest.raises(ConfigError, match="can't be part of a harness"):
        project.keep(name)
    assert project.sync().pushed is None and os.path.lexists(os.fsencode(project.remote / name))


def test_a_link_inside_the_host_s_folder_counts_as_the_file_it_leads_to(project: Project) -> None:
    (project.remote / "eval.py").unlink()
    (project.remote / "eval.py").symlink_to("lib/util.py")
    assert project.changes() == [("eval.py", "modified", "remote")]
    project.keep()
    assert (project.local / "eval.py").read_text() == "VALUE = 1\n" and not (project.local / "eval.py").is_symlink()
    assert project.state() == "in_sync"
    write(project.local, "eval.py", LINES)
    assert project.sync(yes=True).pushed
    assert (project.remote / "lib/util.py").read_text() == "VALUE = 1\n" and not (
        project.remote / "eval.py"
    ).is_symlink()
