"""The git state of the training's source tree, read without writing: no index refresh, no lock, no hook, no filter.

Commit and branch come from the files in .git, without git. Whether there are uncommitted changes only git can tell; it
runs with optional locks off, and with everything off by which a repository's own settings could start a program or
write: file system monitor, external diff, textconv, clean filters (git-lfs stores objects from one), lazy fetching,
tracing.
"""

import os
from typing import Any, Dict, List, Optional, Tuple

LIMIT_S = 5.0
_TRACE = ("GIT_TRACE2", "GIT_TRACE2_EVENT", "GIT_TRACE2_PERF")


def git_state(folder: str, talk: Any) -> Dict[str, Any]:
    """{commit, branch, dirty, error}. `dirty` is git's shortstat of tracked files against HEAD, "" when clean.

    What can't be told is None and `error` says why; a detached HEAD has no branch. Untracked files aren't looked for:
    that walks the whole folder, data sets too. Large files behind a git-lfs filter may count as changed.
    """
    folder = os.path.abspath(os.path.expanduser(folder))
    git_folder = _git_folder(folder)
    if git_folder is None:
        there = "no git repository" if os.path.isdir(folder) else "no such folder"
        return {"commit": None, "branch": None, "dirty": None, "error": "%s: %s" % (folder, there)}
    commit, branch, error = None, None, ""
    try:
        commit, branch = _head(git_folder)
        if commit is None:
            error = "no commit yet, or its refs are not in files"
    except OSError as problem:
        error = "can't read %s: %s" % (git_folder, problem.strerror)
    dirty = None
    if commit is not None:
        dirty, error = _changes(folder, talk)
    return {"commit": commit, "branch": branch, "dirty": dirty, "error": error or None}


def _git_folder(folder: str) -> Optional[str]:
    """The .git of this folder or the nearest above it; a worktree's or submodule's `gitdir:` file is followed."""
    while True:
        path = os.path.join(folder, ".git")
        if os.path.isdir(path):
            return path
        if os.path.isfile(path):
            line = _first_line(path)
            return os.path.normpath(os.path.join(folder, line[8:])) if line.startswith("gitdir: ") else None
        if folder == os.path.dirname(folder):
            return None
        folder = os.path.dirname(folder)


def _head(git_folder: str) -> Tuple[Optional[str], Optional[str]]:
    """(commit, branch) from HEAD, the ref it names and packed-refs. Raises OSError where HEAD can't be read."""
    head = _first_line(os.path.join(git_folder, "HEAD"))
    if not head.startswith("ref: "):
        return (head if _is_hash(head) else None), None
    ref = head[5:]
    branch = ref[len("refs/heads/") :] if ref.startswith("refs/heads/") else ref
    try:
        common = os.path.join(git_folder, _first_line(os.path.join(git_folder, "commondir")))
    except OSError:
        common = git_folder
    for folder in (git_folder, common):
        try:
            value = _first_line(os.path.join(folder, ref))
        except OSError:
            continue
        if _is_hash(value):
            return value, branch
    return _packed(os.path.join(common, "packed-refs"), ref), branch


def _packed(path: str, ref: str) -> Optional[str]:
    try:
        with open(path, errors="replace") as file:
            for line in file:
                value, _, name = line.rstrip("\n").partition(" ")
                if name == ref and _is_hash(value):
                    return value
    except OSError:
        pass
    return None


def _first_line(path: str) -> str:
    with open(path, errors="replace") as file:
        return file.readline(4096).strip()


def _is_hash(text: str) -> bool:
    return len(text) in (40, 64) and all(letter in "0123456789abcdef" for letter in text)


def _changes(folder: str, talk: Any) -> Tuple[Optional[str], str]:
    """(shortstat, "") or (None, why it can't be told)."""
    names, error = _git(folder, talk, [], ["config", "--name-only", "--get-regexp", r"^filter\."], accept=(0, 1))
    if error:
        return None, error
    off: List[str] = []
    for driver in sorted({name.rpartition(".")[0] for name in names.splitlines() if name.count(".") >= 2}):
        off += ["-c", driver + ".clean=", "-c", driver + ".process=", "-c", driver + ".required=false"]
    arguments = ["diff", "--shortstat", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all", "HEAD"]
    stat, error = _git(folder, talk, off, arguments)
    return (None, error) if error else (stat.strip(), "")


def _git(
    folder: str, talk: Any, options: List[str], arguments: List[str], accept: Tuple[int, ...] = (0,)
) -> Tuple[str, str]:
    """(output, "") or ("", what went wrong)."""
    import subprocess

    settings = ["core.fsmonitor=false", "safe.directory=*", "protocol.allow=never", "core.preloadIndex=false"]
    argv = ["git", "--no-optional-locks", "--no-pager", "-C", folder]
    for setting in settings:
        argv += ["-c", setting]
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment.update(dict.fromkeys(_TRACE, "0"))
    environment.update(LC_ALL="C", GIT_OPTIONAL_LOCKS="0", GIT_NO_LAZY_FETCH="1", GIT_TERMINAL_PROMPT="0")
    try:
        child = talk.spawn(
            argv + options + arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
    except OSError as problem:
        return "", "git can't be started: %s" % problem.strerror
    try:
        output, complaint = child.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return "", "git %s took more than %.0f s" % (arguments[0], LIMIT_S)
    if child.returncode not in accept:
        return "", "git %s: %s" % (arguments[0], complaint.decode("utf-8", "replace").strip()[:300])
    return output.decode("utf-8", "replace"), ""
