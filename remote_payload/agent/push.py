"""Make a host's harness folder equal to a manifest. Files arrive beside, are checked, and are renamed into place one by
one; what differs from the last sync is saved first; any failure puts the old files back."""

import hashlib
import os
import shutil
import stat
import time
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence

from remote_payload.agent import manifest, scratch
from remote_payload.agent.errors import AgentError
from remote_payload.agent.folder import Folder, steps
from remote_payload.agent.harness import base_of
from remote_payload.agent.inflow import Inflow, unwritable, write_all
from remote_payload.agent.lock import held
from remote_payload.agent.manifest import Entry, to_bytes

_UNCHANGED = "the harness there is as it was"


def push(
    remote: str,
    entries: Sequence[Entry],
    send: Sequence[str],
    delete: Sequence[str],
    expected: Dict[str, Optional[Entry]],
    pieces: Iterable[bytes],
) -> Dict[str, Any]:
    """Make `remote` hold exactly `entries` (extras stay). `pieces` are the bytes of the files in `send`, in that order;
    `expected` is what the plan saw on the host at every path in `send` and `delete` (None: nothing).

    Returns {"pushed": [path], "deleted": [path], "saved": folder or None, "digest"}. Raises AgentError: refused when a
    file changed since the plan, when a path is not below the folder, on a full disk or without permission; transfer
    when bytes are missing or wrong. After an error the old files are whole.
    """
    _check(entries, send, delete)
    root = scratch.expand(remote)
    orch = os.path.join(root, ".orch")
    try:
        os.makedirs(root, exist_ok=True)
        if os.path.islink(orch):
            raise AgentError("%s is a link; it must be a folder" % orch, kind="refused")
        os.makedirs(orch, exist_ok=True)
        with held(os.path.join(orch, "lock"), "sync-harness"):
            scratch.sweep(orch, "incoming")
            incoming = scratch.create(orch, "incoming")
            try:
                return _Push(root, incoming, entries, send, delete, expected).run(pieces)
            finally:
                shutil.rmtree(incoming, ignore_errors=True)
    except OSError as error:
        raise unwritable(root, error, _UNCHANGED) from None


def _check(entries: Sequence[Entry], send: Sequence[str], delete: Sequence[str]) -> None:
    known = {one["path"] for one in entries}
    for path in [*known, *delete]:
        steps(path)
    if len(known) != len(entries) or not set(send) <= known or known & set(delete) or len(set(send)) != len(send):
        raise AgentError("the list of files to push contradicts itself", kind="config")


class _Push:
    """One push under the lock, with its way back."""

    def __init__(
        self,
        root: str,
        incoming: str,
        entries: Sequence[Entry],
        send: Sequence[str],
        delete: Sequence[str],
        expected: Dict[str, Optional[Entry]],
    ) -> None:
        self.root = root
        self.incoming = incoming
        self.entries = {one["path"]: one for one in entries}
        self.send = send
        self.delete = delete
        self.expected = expected
        self.folder = Folder(root)
        self.undo: List[Callable[[], object]] = []

    def run(self, pieces: Iterable[bytes]) -> Dict[str, Any]:
        inflow = Inflow(pieces)
        arrived = {path: self._receive(number, path, inflow) for number, path in enumerate(self.send)}
        inflow.finish()
        found = self._verify_unchanged()
        kept = self._keep_old()
        saved = self._save(kept, found)
        try:
            self._swap(arrived, kept, found)
            self._remember()
        except (OSError, AgentError):
            self._roll_back()
            if saved:
                shutil.rmtree(saved, ignore_errors=True)
            raise
        self._drop_empty_folders()
        return {
            "pushed": sorted(set(self.send) | {path for path in found if self._mode_differs(path, found)}),
            "deleted": sorted(self.delete),
            "saved": saved,
            "digest": manifest.digest(self.entries.values()),
        }

    def _receive(self, number: int, path: str, inflow: Inflow) -> str:
        """The file beside, with its content checked and its mode set."""
        entry = self.entries[path]
        place = os.path.join(self.incoming, "new-%d" % number)
        digest = hashlib.sha256()
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            for part in inflow.take(entry["size"]):
                digest.update(part)
                write_all(descriptor, part)
            os.fchmod(descriptor, 0o755 if entry["mode"] & stat.S_IXUSR else 0o644)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if digest.hexdigest() != entry["sha256"]:
            raise AgentError("%s arrived with other bytes than announced" % ascii(path), kind="transfer")
        return place

    def _verify_unchanged(self) -> Dict[str, Optional[Entry]]:
        """What is at every path now. Raises AgentError where that is neither what the plan saw nor what it wants."""
        found = {path: self.folder.entry(path) for path in [*self.entries, *self.delete]}
        touched = {*self.send, *self.delete}
        for path, entry in found.items():
            seen = self.expected.get(path) if path in touched else self.entries[path]
            same = _content(entry) == _content(seen) and (path not in touched or _mode(entry) == _mode(seen))
            wanted = self.entries.get(path)
            same = same or (_content(entry), _mode(entry)) == (
                _content(wanted),
                _mode(wanted),
            )  # pushed by another orch
            if not same:
                raise AgentError(
                    "%s changed meanwhile; %s" % (os.path.join(self.root, path), _UNCHANGED),
                    "run the command again to see the new difference",
                    kind="refused",
                )
            if entry is not None and entry["sha256"] == "special":
                raise AgentError(
                    "%s is a device, pipe or socket; %s" % (os.path.join(self.root, path), _UNCHANGED),
                    "look at it on the host and remove it",
                    kind="refused",
                )
        return found

    def _keep_old(self) -> Dict[str, str]:
        """A second name (or copy) of every file about to be replaced or deleted."""
        kept = {}
        for number, path in enumerate([*self.send, *self.delete]):
            place = os.path.join(self.incoming, "old-%d" % number)
            try:
                with self.folder.parent(path) as (folder, name):
                    if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                        continue  # gives way only when the deletions empty it
                    _second_name(name, folder, to_bytes(place))
            except FileNotFoundError:
                continue
            kept[path] = place
        return kept

    def _save(self, kept: Dict[str, str], found: Dict[str, Optional[Entry]]) -> Optional[str]:
        """Where the replaced files that differ from the last sync went; None when there are none."""
        base = {one["path"]: one for one in base_of(self.root) or ()}
        to_save = [path for path in kept if _content(found[path]) != _content(base.get(path))]
        if not to_save:
            return None
        saved = _stamped(os.path.join(self.root, ".orch", "saved"))
        for path in to_save:
            place = os.path.join(to_bytes(saved), to_bytes(path))
            os.makedirs(os.path.dirname(place), exist_ok=True)
            _second_name(to_bytes(kept[path]), None, place)
        return saved

    def _swap(self, arrived: Dict[str, str], kept: Dict[str, str], found: Dict[str, Optional[Entry]]) -> None:
        for path in self.delete:
            if path in kept:
                self.undo.append(self._way_back(path, kept))
                with self.folder.parent(path) as (folder, name):
                    os.unlink(name, dir_fd=folder)
                    _remove_folder_in_the_way(self.folder, path, set(self.send))
        for path, place in arrived.items():
            self.undo.append(self._way_back(path, kept))
            with self.folder.parent(path, create=True) as (folder, name):
                os.replace(place, name, dst_dir_fd=folder)
        for path in found:
            if self._mode_differs(path, found):
                before = self._set_mode(path, self.entries[path]["mode"])
                self.undo.append(lambda path=path, before=before: self._set_mode(path, before))  # type: ignore[misc]

    def _mode_differs(self, path: str, found: Dict[str, Optional[Entry]]) -> bool:
        entry = found[path]
        untouched = path in self.entries and path not in self.send
        return untouched and entry is not None and entry["mode"] != self.entries[path]["mode"]

    def _set_mode(self, path: str, mode: int) -> int:
        """Give a file its permission bits; returns those it had."""
        descriptor = self.folder.open(path)
        try:
            before = stat.S_IMODE(os.fstat(descriptor).st_mode)
            os.fchmod(descriptor, mode)
            return before
        finally:
            os.close(descriptor)

    def _way_back(self, path: str, kept: Dict[str, str]) -> Callable[[], None]:
        def back() -> None:
            with self.folder.parent(path, create=path in kept) as (folder, name):
                if path in kept:
                    os.replace(kept[path], name, dst_dir_fd=folder)
                else:
                    os.unlink(name, dir_fd=folder)

        return back

    def _roll_back(self) -> None:
        """Undo in reverse order, each step for itself: what can be put back is."""
        for step in reversed(self.undo):
            try:
                step()
            except OSError:
                continue

    def _remember(self) -> None:
        """The last file written says what this folder was made equal to."""
        files = sorted(self.entries.values(), key=lambda one: str(one["path"]))
        value = {"schema": 1, "digest": manifest.digest(files), "files": files, "synced_at": _stamp()}
        scratch.write_json(os.path.join(self.root, ".orch", "synced.json"), value)

    def _drop_empty_folders(self) -> None:
        for path in self.delete:
            parts = path.split("/")[:-1]
            while parts:
                try:
                    with self.folder.parent("/".join(parts)) as (folder, name):
                        os.rmdir(name, dir_fd=folder)
                except (OSError, AgentError):
                    break
                parts.pop()


def _remove_folder_in_the_way(folder: Folder, deleted: str, sent: "set[str]") -> None:
    """A deleted a/b leaves folder a, which a new file a replaces."""
    parts = deleted.split("/")[:-1]
    while parts:
        path = "/".join(parts)
        if path in sent:
            with folder.parent(path) as (descriptor, name):
                os.rmdir(name, dir_fd=descriptor)
        parts.pop()


def _content(entry: Optional[Entry]) -> Optional[str]:
    return None if entry is None else str(entry["sha256"])


def _mode(entry: Optional[Entry]) -> Optional[int]:
    return None if entry is None else int(entry["mode"])


def _second_name(name: bytes, folder: Optional[int], place: bytes) -> None:
    """Keep what is at `name` under `place` too: a hard link, or a copy where the disk or its owner allows none."""
    try:
        os.link(name, place, src_dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.symlink(os.readlink(name, dir_fd=folder), place)
        else:
            _copy(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder), place)


def _copy(descriptor: int, place: bytes) -> None:
    with os.fdopen(descriptor, "rb") as source, open(place, "xb") as copy:
        shutil.copyfileobj(source, copy)
        os.fchmod(copy.fileno(), stat.S_IMODE(os.fstat(source.fileno()).st_mode))


def _stamp() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _stamped(parent: str) -> str:
    """A new folder named by the time in UTC."""
    os.makedirs(parent, exist_ok=True)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    for number in range(1, 1000):
        path = os.path.join(parent, stamp if number == 1 else "%s-%d" % (stamp, number))
        try:
            os.mkdir(path)
            return path
        except FileExistsError:
            continue
    raise AgentError("%s: no free name for %s" % (parent, stamp))
