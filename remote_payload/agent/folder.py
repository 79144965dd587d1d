"""A folder that no path leaves. Every step of a relative path is opened by itself and no link is followed."""

import errno
import os
import stat
from contextlib import contextmanager
from typing import Iterator, List, Optional, Tuple

from remote_payload.agent import manifest
from remote_payload.agent.errors import AgentError
from remote_payload.agent.manifest import Entry, to_bytes

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def steps(path: object) -> List[bytes]:
    """The parts of a relative path from the wire. Raises AgentError for one that could lead elsewhere."""
    parts = path.split("/") if isinstance(path, str) else []
    if not parts or "\0" in str(path) or any(part in ("", ".", "..") for part in parts) or parts[0] == ".orch":
        raise AgentError("a path that may not be used: %s" % ascii(path), kind="refused")
    return [to_bytes(part) for part in parts]


class Folder:
    """The folder `root`, which exists. `root` itself may be a link: it was named by the user."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._real = os.path.realpath(to_bytes(root))

    @contextmanager
    def parent(self, path: str, create: bool = False) -> Iterator[Tuple[int, bytes]]:
        """(descriptor of the folder that holds it, name) for one path below the root.

        Raises FileNotFoundError where a folder on the way is missing (`create` makes it) and AgentError where one is
        a link or a file.
        """
        parts = steps(path)
        descriptor = os.open(self._real, _FOLDER)
        try:
            for part in parts[:-1]:
                deeper = self._enter(descriptor, part, path, create)
                os.close(descriptor)
                descriptor = deeper
            yield descriptor, parts[-1]
        finally:
            os.close(descriptor)

    def _enter(self, descriptor: int, part: bytes, path: str, create: bool) -> int:
        try:
            return os.open(part, _FOLDER, dir_fd=descriptor)
        except FileNotFoundError:
            if not create:
                raise
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            raise AgentError(
                "%s: a part of the path %s is a link or a file, and is not followed" % (self.root, ascii(path)),
                "look at it on the host and remove it",
                kind="refused",
            ) from None
        try:
            os.mkdir(part, 0o777, dir_fd=descriptor)
        except FileExistsError:
            pass
        return os.open(part, _FOLDER, dir_fd=descriptor)

    def open(self, path: str) -> int:
        """A descriptor of the file, for reading. A link to a file inside the folder counts as that file.

        Raises FileNotFoundError; OSError with ELOOP for any other link, with EISDIR or EINVAL for what is no file.
        """
        with self.parent(path) as (folder, name):
            try:
                descriptor = os.open(name, _FILE, dir_fd=folder)
            except OSError as error:
                if error.errno not in (errno.ELOOP, getattr(errno, "EMLINK", errno.ELOOP)):
                    raise
                place = manifest.link_inside(os.path.join(self._real, to_bytes(path)), self._real)
                if place is None:
                    raise
                descriptor = os.open(place, _FILE)
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            os.close(descriptor)
            raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, "not a file", path)
        return descriptor

    def entry(self, path: str) -> Optional[Entry]:
        """The manifest entry of what is at `path`, None where nothing is.

        What is no file of this folder gets `sha256` "link", "folder" or "special" and mode 0: it differs from any file.
        Raises AgentError when it can't be read or keeps changing.
        """
        try:
            for _ in range(3):
                descriptor = self.open(path)
                try:
                    found = manifest.entry_of(path, descriptor)
                finally:
                    os.close(descriptor)
                if found is not None:
                    return found
        except FileNotFoundError:
            return None
        except OSError as error:
            kind = {errno.ELOOP: "link", errno.EISDIR: "folder", errno.EINVAL: "special", errno.ENXIO: "special"}
            if error.errno not in kind:
                raise AgentError("%s: %s" % (os.path.join(self.root, path), error.strerror), kind="refused") from None
            return {"path": path, "mode": 0, "sha256": kind[error.errno], "size": 0}
        raise AgentError("%s keeps changing while it is read" % os.path.join(self.root, path), kind="refused")
