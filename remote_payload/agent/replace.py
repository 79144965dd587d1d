"""Make a folder equal to a manifest, whole or not at all. Files arrive beside, are checked, and are renamed into place
one by one; what is replaced can be saved first; any failure puts the old files back.

Both sides use it: a push changes the harness on a host, `--keep-remote` and `--merge` the one on the laptop.
"""

import hashlib
import os
import re
import shutil
import stat
import time
from contextlib import contextmanager
from typing import Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Set

from remote_payload.agent import scratch
from remote_payload.agent.errors import AgentError
from remote_payload.agent.folder import Folder, steps
from remote_payload.agent.inflow import Inflow, unwritable, write_all
from remote_payload.agent.lock import held
from remote_payload.agent.manifest import Entry, to_bytes

OWN = ".orch"
"""orch's own folder inside a harness folder"""
UNCHANGED = "the harness there is as it was"
Found = Dict[str, Optional[Entry]]


@contextmanager
def opened(root: str, doing: str) -> Iterator[str]:
    """The lock on a harness folder, which is made where it is missing, and a place inside it for what arrives.

    Raises AgentError for a folder that can't be written, and when somebody else holds the lock.
    """
    own = os.path.join(root, OWN)
    try:
        os.makedirs(root, exist_ok=True)
        if os.path.islink(own):
            raise AgentError("%s is a link; it must be a folder" % own, kind="refused")
        os.makedirs(own, exist_ok=True)
        with held(os.path.join(own, "lock"), doing):
            _sweep(own)
            incoming = scratch.create(own, "incoming")
            try:
                yield incoming
            finally:
                shutil.rmtree(incoming, ignore_errors=True)
    except OSError as error:
        raise unwritable(root, error, UNCHANGED) from None


def _sweep(own: str) -> None:
    """What a killed change has left: nobody else is at work here while the lock is held."""
    scratch.sweep(own, "incoming")
    for name in os.listdir(own):
        if re.fullmatch(r".+\.json\.\d+\.tmp", name):
            os.unlink(os.path.join(own, name))


def check(entries: Sequence[Entry], send: Sequence[str], delete: Sequence[str]) -> None:
    """Raises AgentError for lists that contradict each other, and for a path that may not be used."""
    known = {one["path"] for one in entries}
    for path in [*known, *delete]:
        steps(path)
    if len(known) != len(entries) or not set(send) <= known or known & set(delete) or len(set(send)) != len(send):
        raise AgentError("the list of files to push contradicts itself", kind="config")


class Replacement:
    """One change of a folder, under its lock: `receive`, `verify`, `save`, `swap`, in this order.

    `entries` is all that the folder shall hold (what is beside stays), `send` the paths whose bytes arrive, `delete`
    those that go, `expected` what the plan saw at each path of both (None: nothing).
    """

    def __init__(
        self,
        root: str,
        incoming: str,
        entries: Sequence[Entry],
        send: Sequence[str],
        delete: Sequence[str],
        expected: Found,
    ) -> None:
        self.root = root
        self.entries = {one["path"]: one for one in entries}
        self.found: Found = {}
        """what is at every path, once verified"""
        self.arrived: Dict[str, str] = {}
        """where the checked bytes of each path of `send` lie"""
        self._incoming = incoming
        self._send = send
        self._delete = delete
        self._expected = expected
        self._folder = Folder(root)
        self._kept: Dict[str, str] = {}
        self._undo: List[Callable[[], object]] = []
        self._saved: Optional[str] = None

    def receive(self, pieces: Iterable[bytes]) -> None:
        """Take the bytes of the files in `send`, in that order. Raises AgentError (transfer), OSError."""
        inflow = Inflow(pieces)
        for number, path in enumerate(self._send):
            self.arrived[path] = self._receive(number, path, inflow)
        inflow.finish()

    def _receive(self, number: int, path: str, inflow: Inflow) -> str:
        """The file beside, with its content checked and its mode set."""
        entry = self.entries[path]
        place = os.path.join(self._incoming, "new-%d" % number)
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

    def verify(self) -> None:
        """Look at every path. Raises AgentError where that is neither what the plan saw nor what it wants."""
        self.found = {path: self._folder.entry(path) for path in [*self.entries, *self._delete]}
        touched = {*self._send, *self._delete}
        for path, entry in self.found.items():
            wanted = self.entries.get(path)
            seen = self._expected.get(path) if path in touched else wanted
            same = content(entry) == content(seen) and (path not in touched or _mode(entry) == _mode(seen))
            pushed_by_another = (content(entry), _mode(entry)) == (content(wanted), _mode(wanted))
            if not (same or pushed_by_another):
                raise AgentError(
                    "%s changed meanwhile; %s" % (os.path.join(self.root, path), UNCHANGED),
                    "run the command again to see the new difference",
                    kind="refused",
                )
            if entry is not None and entry["sha256"] == "special":
                raise AgentError(
                    "%s is a device, pipe or socket; %s" % (os.path.join(self.root, path), UNCHANGED),
                    "look at it on the host and remove it",
                    kind="refused",
                )

    def save(self, worth: Callable[[str, Optional[Entry]], bool]) -> Optional[str]:
        """Keep a second name (or copy) of what is replaced or deleted; where those that are `worth` it are saved for
        good, None when there are none. Raises OSError."""
        self._keep_old()
        to_save = [path for path in self._kept if worth(path, self.found[path])]
        if not to_save:
            return None
        self._saved = saved = _stamped(os.path.join(self.root, OWN, "saved"))
        for path in to_save:
            place = os.path.join(to_bytes(saved), to_bytes(path))
            os.makedirs(os.path.dirname(place), exist_ok=True)
            _second_name(to_bytes(self._kept[path]), None, place)
        return saved

    def _keep_old(self) -> None:
        for number, path in enumerate([*self._send, *self._delete]):
            place = os.path.join(self._incoming, "old-%d" % number)
            try:
                with self._folder.parent(path) as (folder, name):
                    if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                        continue  # gives way only when the deletions empty it
                    _second_name(name, folder, to_bytes(place))
            except FileNotFoundError:
                continue
            self._kept[path] = place

    def swap(self, remember: Callable[[], None]) -> List[str]:
        """Put everything in its place and `remember` that; returns the paths that changed, deleted ones aside.

        Raises AgentError or OSError, after which the old files are whole and nothing more is saved.
        """
        try:
            self._swap()
            self._sync_folders()
            remember()
        except (OSError, AgentError):
            self._roll_back()
            if self._saved:
                shutil.rmtree(self._saved, ignore_errors=True)
            raise
        self._drop_empty_folders()
        return sorted(set(self._send) | {path for path in self.found if self._mode_differs(path)})

    def _swap(self) -> None:
        for path in self._delete:
            if path in self._kept:
                self._undo.append(self._way_back(path))
                with self._folder.parent(path) as (folder, name):
                    os.unlink(name, dir_fd=folder)
                    _remove_folder_in_the_way(self._folder, path, set(self._send))
        for path, place in self.arrived.items():
            with self._folder.parent(path, create=True) as (folder, name):
                if self.found[path] is None:
                    self._check_free(path, folder, name)
                self._undo.append(self._way_back(path))
                os.replace(place, name, dst_dir_fd=folder)
        for path in self.found:
            if self._mode_differs(path):
                before = self._set_mode(path, self.entries[path]["mode"])
                self._undo.append(lambda path=path, before=before: self._set_mode(path, before))  # type: ignore[misc]

    def _check_free(self, path: str, folder: int, name: bytes) -> None:
        """A new file must not replace one whose name differs in case only, where the file system takes both for one."""
        try:
            os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return
        raise AgentError(
            "%s: on this file system it is the same name as another file of the harness" % ascii(path),
            "rename one of them: they differ in case, or in how accents are written, alone",
            kind="refused",
        )

    def _mode_differs(self, path: str) -> bool:
        entry = self.found[path]
        untouched = path in self.entries and path not in self._send
        return untouched and entry is not None and entry["mode"] != self.entries[path]["mode"]

    def _set_mode(self, path: str, mode: int) -> int:
        """Give a file its permission bits; returns those it had."""
        descriptor = self._folder.open(path)
        try:
            before = stat.S_IMODE(os.fstat(descriptor).st_mode)
            os.fchmod(descriptor, mode)
            return before
        finally:
            os.close(descriptor)

    def _way_back(self, path: str) -> Callable[[], None]:
        def back() -> None:
            with self._folder.parent(path, create=path in self._kept) as (folder, name):
                if path in self._kept:
                    os.replace(self._kept[path], name, dst_dir_fd=folder)
                else:
                    os.unlink(name, dir_fd=folder)

        return back

    def _roll_back(self) -> None:
        """Undo in reverse order, each step for itself: what can be put back is."""
        for step in reversed(self._undo):
            try:
                step()
            except OSError:
                continue

    def _sync_folders(self) -> None:
        """The new names last through a power cut before anything says that they are there."""
        folders: Set[str] = {os.path.dirname(path) for path in self.arrived}
        for folder in folders:
            scratch.sync(os.path.join(self.root, folder))

    def _drop_empty_folders(self) -> None:
        for path in self._delete:
            parts = path.split("/")[:-1]
            while parts:
                try:
                    with self._folder.parent("/".join(parts)) as (folder, name):
                        os.rmdir(name, dir_fd=folder)
                except (OSError, AgentError):
                    break
                parts.pop()


def _remove_folder_in_the_way(folder: Folder, deleted: str, sent: "Set[str]") -> None:
    """A deleted a/b leaves folder a, which a new file a replaces."""
    parts = deleted.split("/")[:-1]
    while parts:
        path = "/".join(parts)
        if path in sent:
            with folder.parent(path) as (descriptor, name):
                os.rmdir(name, dir_fd=descriptor)
        parts.pop()


def content(entry: Optional[Entry]) -> Optional[str]:
    """What tells one content from another; None for a file that is not there."""
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
