"""Looking below a checkpoint root without ever leaving it: no link is followed to the outside."""

import errno
import os
import stat
from typing import List, NamedTuple, Optional, Tuple

from remote_payload.agent.errors import AgentError
from remote_payload.agent.openfile import OpenFile, Stamp
from remote_payload.agent.verdicts import Refusal, Torn

MAX_ENTRIES = 200_000
"""names read from one folder"""


class Entry(NamedTuple):
    """A name in a folder. kind: file, dir, link or other. Links are not followed."""

    name: str
    kind: str
    stamp: Stamp
    mtime: float


class Tree:
    """A root folder. Paths are relative to it, with `/`; "" is the root itself."""

    def __init__(self, root: str) -> None:
        """Raises AgentError where the root is missing, isn't a folder or can't be read."""
        self.given = root
        try:
            self.root = os.path.realpath(os.path.expanduser(root))
            os.close(os.open(self.root, os.O_RDONLY | os.O_DIRECTORY))
        except OSError as error:
            raise AgentError(*_why_no_root(root, error), kind="config") from None

    def entries(self, folder: str = "") -> List[Entry]:
        """What lies in a folder, sorted by name. Raises OSError, and Refusal for a folder too large to list."""
        fd = self._folder(folder)
        found: List[Entry] = []
        try:
            with os.scandir(fd) as listing:
                for item in listing:
                    if len(found) >= MAX_ENTRIES:
                        raise Refusal("more than %d names in %r" % (MAX_ENTRIES, folder or self.root))
                    try:
                        status = item.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue  # rotated away between the listing and this look
                    found.append(Entry(item.name, _kind(status.st_mode), Stamp.of(status), status.st_mtime))
        finally:
            os.close(fd)
        return sorted(found)

    def names(self, folder: str = "") -> List[str]:
        """Names in a folder; none where it isn't a folder that can be read."""
        try:
            return [entry.name for entry in self.entries(folder)]
        except (OSError, Refusal):
            return []

    def walk(self, folder: str, depth: int = 6) -> List[Tuple[str, Entry]]:
        """All regular files below a folder as (path relative to it, entry). Raises as `entries` does."""
        files: List[Tuple[str, Entry]] = []
        for entry in self.entries(folder):
            if entry.kind == "file":
                files.append((entry.name, entry))
            elif entry.kind == "dir" and depth > 0:
                files.extend(
                    (join(entry.name, path), below) for path, below in self.walk(join(folder, entry.name), depth - 1)
                )
        return files

    def open(self, path: str) -> OpenFile:
        """A file below the root. A link is followed only where it ends inside the root. Raises OSError, Refusal."""
        folder, name = os.path.split(path)
        try:
            return self._open(folder, name)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
        inside = self.inside(path)
        if inside is None:
            raise Refusal("%r is a link that leaves %s" % (path, self.root))
        return self._open(*os.path.split(inside))

    def inside(self, path: str) -> Optional[str]:
        """Where a path really lies, relative to the root; None where that is outside or nowhere."""
        real = os.path.realpath(os.path.join(self.root, path))
        if not os.path.exists(real) or os.path.commonpath([real, self.root]) != self.root:
            return None
        relative = os.path.relpath(real, self.root)
        return "" if relative == "." else relative

    def is_folder(self, path: str) -> bool:
        """Whether a path, followed without leaving the root, is a folder."""
        inside = self.inside(path)
        return inside is not None and os.path.isdir(os.path.join(self.root, inside))

    def small(self, path: str, limit: int) -> bytes:
        """The whole of a small file. Raises Torn past `limit` bytes, OSError, Refusal."""
        file = self.open(path)
        try:
            if file.size > limit:
                raise Torn("%s has %d bytes, more than the %d that belong there" % (path, file.size, limit))
            return file.read(0, file.size)
        finally:
            file.close()

    def _open(self, folder: str, name: str) -> OpenFile:
        parent = self._folder(folder)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
        try:
            try:
                fd = os.open(name, flags | getattr(os, "O_NOATIME", 0), dir_fd=parent)
            except PermissionError:  # O_NOATIME is for the owner only
                fd = os.open(name, flags, dir_fd=parent)
        finally:
            os.close(parent)
        return OpenFile(fd, join(folder, name))

    def _folder(self, folder: str) -> int:
        """A descriptor of a folder, reached one name at a time without following links."""
        if folder.startswith("/") or ".." in folder.split("/"):
            raise Refusal("%r leaves %s" % (folder, self.root))
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        for name in folder.split("/"):
            if name in ("", "."):
                continue
            try:
                below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
            finally:
                os.close(fd)
            fd = below
        return fd


def join(folder: str, name: str) -> str:
    """`folder/name`, where "" and "." are the root itself."""
    return name if folder in ("", ".") else folder + "/" + name


def _kind(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "dir"
    return "link" if stat.S_ISLNK(mode) else "other"


def _why_no_root(root: str, error: OSError) -> Tuple[str, str]:
    hint = "Correct `checkpoints:` of this run in hosts.yaml"
    if isinstance(error, FileNotFoundError):
        return "no such folder: %s" % root, hint
    if isinstance(error, NotADirectoryError):
        return "not a folder: %s" % root, hint
    if isinstance(error, PermissionError):
        return "no permission to read %s as user %d" % (root, os.geteuid()), "Log in as the user that owns it"
    return "cannot read %s: %s" % (root, error.strerror), hint
