"""The manifest of a harness folder, its digest, and the three-way comparison. Both sides import this module.

An entry is {"path", "mode", "sha256", "size"}: path relative and POSIX, mode 0o644 or 0o755 by the owner's executable
bit, so that equal content gives equal manifests on any file system. A link to a file inside the folder counts as that
file; every other link, and what is neither file nor folder, is left out with a note.
"""

import hashlib
import os
import stat
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from remote_payload.agent.errors import AgentError
from remote_payload.agent.ignore import FILE, Rules, parse

Entry = Dict[str, Any]
_CHUNK = 1 << 20
_OPEN = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)


def to_bytes(path: str) -> bytes:
    """A path as the file system takes it, whatever the locale says."""
    return path.encode("utf-8", "surrogateescape")


def to_text(path: bytes) -> str:
    """The reverse of `to_bytes`; bytes that are not UTF-8 become lone surrogates."""
    return path.decode("utf-8", "surrogateescape")


def build(root: str, patterns: Optional[Iterable[str]] = None, notes: Optional[List[str]] = None) -> List[Entry]:
    """The manifest of `root`, sorted by path. `patterns` stand in for the folder's .orchignore; `notes` collects what
    was left out and why.

    Raises AgentError for a folder that is not there or not readable, for a name with control characters or bytes that
    are not UTF-8, and for a file that keeps changing.
    """
    said: List[str] = [] if notes is None else notes
    entries = []
    for path, place in walk(root, rules_of(root, patterns), said):
        if odd(path):
            raise AgentError(
                "%s: a file name that can't be part of a harness: %s" % (root, ascii(path)),
                "rename it, or name it in %s" % FILE,
                kind="config",
            )
        try:
            entries.append(entry(path, place))
        except FileNotFoundError:
            said.append("%s vanished meanwhile" % path)
        except OSError as error:
            raise AgentError("%s: %s" % (os.path.join(root, path), error.strerror), kind="config") from None
    return sorted(entries, key=lambda one: str(one["path"]))


def rules_of(root: str, patterns: Optional[Iterable[str]] = None) -> Rules:
    """The ignore rules of a folder: the built-in ones and `patterns`, or its own .orchignore."""
    if patterns is None:
        try:
            with open(os.path.join(to_bytes(root), to_bytes(FILE)), "rb") as file:
                patterns = parse(file.read(_CHUNK).decode("utf-8", "replace"))
        except OSError:
            patterns = ()
    return Rules(patterns)


def odd(path: str) -> bool:
    """Whether a name holds control characters or bytes that are not UTF-8."""
    return any(ord(letter) < 32 or ord(letter) == 127 or 0xD800 <= ord(letter) < 0xE000 for letter in path)


def walk(root: str, rules: Rules, notes: List[str]) -> Iterator[Tuple[str, bytes]]:
    """(relative path, where its bytes are) of every file that the rules keep, in no promised order.

    Raises AgentError where the folder, or one below it, can't be listed.
    """
    top = to_bytes(root)
    real_top = os.path.realpath(top)
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        try:
            found = list(os.scandir(os.path.join(top, to_bytes(folder))))
        except OSError as error:
            if folder and isinstance(error, FileNotFoundError):
                notes.append("%s vanished meanwhile" % folder)
                continue
            raise AgentError("%s: %s" % (os.path.join(root, folder), error.strerror), kind="config") from None
        if folder and any(one.name == b"pyvenv.cfg" for one in found):
            continue
        for one in sorted(found, key=lambda item: item.name):
            path = folder + "/" + to_text(one.name) if folder else to_text(one.name)
            is_folder = one.is_dir(follow_symlinks=False)
            if rules.ignored(path, is_folder):
                continue
            if is_folder:
                waiting.append(path)
            elif one.is_file(follow_symlinks=False):
                yield path, one.path
            elif one.is_symlink():
                place = link_inside(one.path, real_top)
                if place is None:
                    notes.append("%s is left out: a link to a folder, or out of the harness" % ascii(path))
                else:
                    yield path, place
            else:
                notes.append("%s is left out: neither a file nor a folder" % ascii(path))


def link_inside(link: bytes, real_top: bytes) -> Optional[bytes]:
    """Where a link leads, when that is a file inside `real_top`; else None."""
    place = os.path.realpath(link)
    inside = place.startswith(real_top.rstrip(b"/") + b"/")
    return place if inside and os.path.isfile(place) else None


def entry(path: str, place: bytes) -> Entry:
    """The manifest entry of the file at `place`, named `path`. Raises OSError; AgentError when it keeps changing."""
    for _ in range(3):
        descriptor = os.open(place, _OPEN)
        try:
            found = entry_of(path, descriptor)
        finally:
            os.close(descriptor)
        if found is not None:
            return found
    raise AgentError("%s keeps changing while it is read" % path, "try again when it is at rest", kind="refused")


def entry_of(path: str, descriptor: int) -> Optional[Entry]:
    """The manifest entry of an open file; None when it changed while it was read. Raises OSError."""
    before = os.fstat(descriptor)
    if not stat.S_ISREG(before.st_mode):
        raise FileNotFoundError(2, "no longer a file", path)
    digest = hashlib.sha256()
    while True:
        data = os.read(descriptor, _CHUNK)
        if not data:
            break
        digest.update(data)
    after = os.fstat(descriptor)
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        return None
    mode = 0o755 if after.st_mode & stat.S_IXUSR else 0o644
    return {"path": path, "mode": mode, "sha256": digest.hexdigest(), "size": after.st_size}


def digest(entries: Iterable[Entry]) -> str:
    """The name of a harness version: sha256 (hex) over (path, mode, sha256) of its files, in the order of paths."""
    total = hashlib.sha256()
    for one in sorted(entries, key=lambda item: str(item["path"])):
        total.update(b"%s\0%o\0%s\n" % (to_bytes(one["path"]), one["mode"], one["sha256"].encode("ascii")))
    return total.hexdigest()


def compare(
    base: Optional[Sequence[Entry]],
    local: Sequence[Entry],
    remote: Optional[Sequence[Entry]],
    extras: Iterable[str] = (),
) -> Dict[str, Any]:
    """Three-way: what was last synced, the local folder, the remote one (None: no folder there).

    Returns {"state", "files": [{"path", "change", "side"}], "local", "remote", "base"}; the last three are digests or
    None. A file that is equal on both sides is no difference, whatever the base says. Without a base nobody can tell
    who changed a file: differing sides are then `unknown`. Extras are listed and change no state.
    """
    here, there, was = _by_path(local), _by_path(remote or ()), _by_path(base or ())
    files = []
    for path in sorted(set(here) | set(there) | set(was)):
        change = _change(was.get(path), here.get(path), there.get(path), base is not None)
        if change:
            files.append({"path": path, "change": change[0], "side": change[1]})
    sides = {one["side"] for one in files}
    files += [{"path": path, "change": "extra", "side": "remote"} for path in sorted(extras)]
    return {
        "state": _state(sides, base is not None, bool(there)),
        "files": files,
        "local": digest(local),
        "remote": digest(remote) if there and remote else None,
        "base": digest(base) if base is not None else None,
    }


def _by_path(entries: Iterable[Entry]) -> Dict[str, Tuple[int, str]]:
    return {one["path"]: (one["mode"], one["sha256"]) for one in entries}


def _state(sides: "set[str]", has_base: bool, anything_there: bool) -> str:
    if not anything_there and not (has_base and sides):
        return "absent" if sides else "in_sync"
    if not sides:
        return "in_sync"
    if not has_base:
        return "unknown"
    if sides == {"local"}:
        return "local_ahead"
    return "remote_edited" if sides == {"remote"} else "both"


_State = Optional[Tuple[int, str]]


def _change(was: _State, here: _State, there: _State, has_base: bool) -> Optional[Tuple[str, str]]:
    """(change, side) of one file, or None where both sides agree."""
    if here == there:
        return None
    if not has_base:
        return ("added", "local") if there is None else (_kind(there, here), "both")
    if there == was:
        return _kind(was, here), "local"
    if here == was:
        return _kind(was, there), "remote"
    if here is None or there is None:
        return "deleted", "both"
    return ("added" if was is None else _kind(here, there)), "both"


def _kind(before: _State, after: _State) -> str:
    if before is None:
        return "added"
    if after is None:
        return "deleted"
    return "mode" if before[1] == after[1] else "modified"
