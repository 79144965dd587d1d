"""Work folders that count only once renamed, and small files that are whole or absent. Their writer is recorded, so
that what a dead writer left is recognised and removed."""

import errno
import json
import os
import shutil
import stat
import time
from typing import Any, AnyStr, BinaryIO, Dict, Iterator, List, Optional

from remote_payload.agent import incarnation
from remote_payload.agent.errors import AgentError

SCHEMA = 1
"""of the files that orch writes on an evaluation host"""
WRITER = "writer.json"
UNCLAIMED = 60.0
"""seconds after which a folder without a writer's record is nobody's"""
_NO_LINKS_HERE = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
FOREIGN = 86400.0
"""seconds after which the work of another machine on a shared disk is given up"""


def expand(path: str) -> str:
    """A path of the inventory as an absolute one of this host: `~` is HOME, relative ones start where ssh lands."""
    return os.path.abspath(os.path.expanduser(path))


def create(parent: str, prefix: str) -> str:
    """A new folder PARENT/PREFIX-RANDOM that names this process as its writer. Raises OSError."""
    os.makedirs(parent, exist_ok=True)
    path = os.path.join(parent, "%s-%s" % (prefix, os.urandom(6).hex()))
    os.mkdir(path, 0o700)
    try:
        write_json(os.path.join(path, WRITER), incarnation.record(os.getpid()))
    except OSError:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return path


def sweep(parent: str, prefix: str) -> None:
    """Remove the folders PARENT/PREFIX-* whose writers are gone."""
    for path in _named(parent, prefix + "-"):
        if abandoned(path):
            shutil.rmtree(path, ignore_errors=True)


def _named(parent: str, prefix: str) -> Iterator[str]:
    return (os.path.join(parent, name) for name in listed(parent) if name.startswith(prefix))


def abandoned(path: str) -> bool:
    """Whether the writer of a work folder is gone."""
    writer = read_json(os.path.join(path, WRITER))
    if writer is None:
        return age(path) > UNCLAIMED
    seen = incarnation.look(writer)
    return age(path) > FOREIGN if seen == "elsewhere" else seen == "gone"


def age(path: str) -> float:
    """Seconds since a file or folder last changed, by this host's clock; 0 for what is not there."""
    try:
        return time.time() - os.stat(path).st_mtime
    except OSError:
        return 0.0


def write_json(path: str, value: Dict[str, Any]) -> None:
    """Write beside, then rename: a reader sees the old file or the new one. Raises OSError."""
    temporary = "%s.%d.tmp" % (path, os.getpid())
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        unlink(temporary)
        raise


def write_new(path: str, value: Dict[str, Any]) -> bool:
    """As `write_json`, but never over a file that is there: then False. Raises OSError."""
    draft = os.path.join(os.path.dirname(path), ".%s.%d" % (os.path.basename(path), os.getpid()))
    write_json(draft, value)
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS_HERE:
            raise
        return _write_into_new(path, value)
    finally:
        unlink(draft)
    return True


def _write_into_new(path: str, value: Dict[str, Any]) -> bool:
    """On a disk without hard links a reader may see the file empty for a moment."""
    try:
        with open(path, "x", encoding="utf-8") as file:
            json.dump(value, file)
    except FileExistsError:
        return False
    return True


def open_file(path: str) -> BinaryIO:
    """Open what must be a file: a pipe in its place would be waited for without end. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is no file", path)
    return os.fdopen(descriptor, "rb")


def read_json(path: str) -> Optional[Dict[str, Any]]:
    """The object in a JSON file; None where there is none."""
    try:
        with open_file(path) as file:
            value = json.loads(file.read().decode("utf-8"))
    except (OSError, ValueError, RecursionError):  # the last for thousands of brackets in each other
        return None
    return value if isinstance(value, dict) else None


def read_record(path: str) -> Optional[Dict[str, Any]]:
    """A file that orch wrote: as `read_json`. Raises AgentError for one that a newer orch wrote."""
    value = read_json(path)
    schema = (value or {}).get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        raise AgentError("%s was written by a newer orch (schema %d)" % (path, schema), "update orch", kind="refused")
    return value


def listed(folder: AnyStr) -> List[AnyStr]:
    """The sorted names in a folder; none where it can't be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def sync(path: str) -> None:
    """Make a file's bytes, or the names in a folder, last through a power cut. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unlink(path: str) -> None:
    """Remove a file; one that can't be removed, or is not there, is left so."""
    try:
        os.unlink(path)
    except OSError:
        pass
