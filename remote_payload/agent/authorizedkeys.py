"""One line of orch's own in ~/.ssh/authorized_keys for the time of a shipment, everything else in the file untouched.

The line lets one key in, from one address, until a time by this host's clock, for one command. Its comment says whose
it is: `orch-ID`, the process that removes it, and what has to be put back when it goes. The file is replaced by a
rename under a lock (flock on ~/.ssh, which leaves nothing behind), with its mode, owner, attributes and, where it is
a link, its place kept. Another program that writes the file in the same instant without a lock is noticed before the
rename, not after.
"""

import fcntl
import os
import pwd
import re
import stat
import time
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from remote_payload.agent import incarnation, scratch
from remote_payload.agent.errors import AgentError
from remote_payload.agent.inflow import write_all

LIFE = 3600.0
"""seconds that a line is good for, at most; it is renewed while it is needed"""
PATIENCE = 5.0
_TEMPORARY = "authorized_keys.orch-"
_OURS = re.compile(rb"^restrict,from=.* orch-([0-9a-f]{8,64}) (\S+)$")
_WORD = re.compile(r"[^A-Za-z0-9./_-]")
_ADDRESS = re.compile(r"[0-9A-Fa-f.:]+(%[A-Za-z0-9._-]+)?")


def path() -> str:
    """The file that sshd reads by default for this user. Raises AgentError for a user without a home."""
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        raise AgentError("user %d has no home" % os.getuid(), kind="refused") from None
    return os.path.join(home, ".ssh", "authorized_keys")


def enter(identity: str, public: str, addresses: Sequence[str], command: str, life: float = LIFE) -> float:
    """Add the line of this identity, or renew it; returns the time (by time.time()) until which it is good.

    Raises AgentError where the file can't be changed as it must be: then nothing was.
    """
    if not all(_ADDRESS.fullmatch(address) for address in addresses) or not addresses:
        raise AgentError("no addresses: %r" % (addresses,), kind="config")
    until = time.time() + min(life, LIFE)
    options = 'restrict,from="%s",expiry-time="%s",command="%s"' % (
        ",".join(addresses),
        local_time(until),
        command.replace('"', '\\"'),
    )
    kind, blob = public.split()[:2]

    def change(before: Optional[bytes], made: str) -> bytes:
        text = before or b""
        kept = _note(text, identity)
        if kept is not None:
            made = kept["made"]
        text = _without(text, identity)
        joined = bool(text) and not text.endswith(b"\n")
        line = "%s %s %s %s" % (options, kind, blob, _comment(identity, until, joined, made))
        return text + (b"\n" if joined else b"") + line.encode("utf-8") + b"\n"

    _change(change)
    return until


def remove(identity: str) -> None:
    """Take the line away again. Raises AgentError."""
    _take_away(lambda note: note["id"] == identity)


def sweep() -> None:
    """Take away the lines whose processes are gone, or that are no longer good. Raises AgentError."""
    if os.path.exists(path()):
        _take_away(_stale)


def local_time(seconds: float) -> str:
    """As sshd reads `expiry-time`: in the system's time zone, whatever this user's is."""
    mine = os.environ.pop("TZ", None)
    time.tzset()
    try:
        return time.strftime("%Y%m%d%H%M%S", time.localtime(seconds))
    finally:
        if mine is not None:
            os.environ["TZ"] = mine
            time.tzset()


def _comment(identity: str, until: float, joined: bool, made: str) -> str:
    """The end of our lines: what is known of a line when it has to go."""
    writer = incarnation.record(os.getpid())
    words = ["until:%d" % until, "pid:%d" % writer["pid"], "ticks:%d" % writer["start_ticks"]]
    words += ["node:" + _WORD.sub("_", writer["node"]), "incarnation:" + _WORD.sub("_", writer["incarnation"])]
    words += (["joined:1"] if joined else []) + (["made:" + made] if made else [])
    return "orch-%s %s" % (identity, ",".join(words))


def _read_note(line: bytes) -> Optional[Dict[str, str]]:
    found = _OURS.match(line)
    if found is None:
        return None
    pairs = (word.partition(":") for word in found.group(2).decode("ascii", "replace").split(","))
    note = {"until": "0", "pid": "0", "ticks": "-1", "node": "", "incarnation": "", "joined": "", "made": ""}
    note.update({key: value for key, _, value in pairs})
    return dict(note, id=found.group(1).decode("ascii"))


def _stale(note: Dict[str, str]) -> bool:
    if not note["until"].isdigit() or time.time() > int(note["until"]) + 60:
        return True
    here = incarnation.record(os.getpid())
    if note["node"] != _WORD.sub("_", here["node"]):
        return False  # a home that hosts share: another one's line, good until it expires
    if note["incarnation"] != _WORD.sub("_", here["incarnation"]) or not note["pid"].isdigit():
        return True
    writer = dict(here, pid=int(note["pid"]), start_ticks=int(note["ticks"]))
    return incarnation.look(writer) == "gone"


def _note(text: bytes, identity: str) -> Optional[Dict[str, str]]:
    notes = (_read_note(line) for line in text.split(b"\n"))
    return next((note for note in notes if note is not None and note["id"] == identity), None)


def _without(text: bytes, identity: str) -> bytes:
    return _cut(text, lambda note: note["id"] == identity)[0]


def _cut(text: bytes, unwanted: Callable[[Dict[str, str]], bool]) -> Tuple[bytes, List[Dict[str, str]]]:
    """The file without some of our lines, and with the line end that it lacked before lacking again.

    What a line knew that goes before another one of ours (the file lacked a line end, or was not there) is handed on.
    """
    kept: List[bytes] = []
    gone: List[Dict[str, str]] = []
    joined, made = False, ""
    for line in re.findall(rb"[^\n]*\n|[^\n]+", text):
        note = _read_note(line.rstrip(b"\n"))
        if note is not None and unwanted(note):
            gone.append(note)
            joined, made = joined or bool(note["joined"]), made or note["made"]
            continue
        if note is not None:
            line = _noted(line, "joined:1" if joined and not note["joined"] else "")
            line = _noted(line, "made:" + made if made and not note["made"] else "")
            made = ""
        joined = False
        kept.append(line)
    if joined and kept:
        kept[-1] = kept[-1][:-1]
    return b"".join(kept), gone


def _noted(line: bytes, more: str) -> bytes:
    """One of our lines with something more in its comment."""
    return line.rstrip(b"\n") + b"," + more.encode("ascii") + b"\n" if more else line


def _take_away(unwanted: Callable[[Dict[str, str]], bool]) -> None:
    made: List[str] = []

    def change(before: Optional[bytes], _: str) -> Optional[bytes]:
        text, gone = _cut(before or b"", unwanted)
        made[:] = [note["made"] for note in gone if note["made"]]
        return None if made and not text else text

    _change(change)
    if "folder" in made:
        try:
            os.rmdir(os.path.dirname(path()))
        except OSError:
            pass  # something else lies in it by now


def _change(change: Callable[[Optional[bytes], str], Optional[bytes]]) -> None:
    """Replace the file's content: bytes or None for no file, before and after. Raises AgentError."""
    try:
        with _locked() as made_folder:
            for _ in range(20):
                if _replaced(os.path.realpath(path()), change, "folder" if made_folder else "file"):
                    return
    except OSError as error:
        raise AgentError("%s can't be changed: %s" % (path(), error.strerror), kind="refused") from None
    raise AgentError("%s keeps changing" % path(), kind="refused")


@contextmanager
def _locked() -> Iterator[bool]:
    """Hold ~/.ssh; yields whether it was made for that."""
    folder = os.path.dirname(path())
    made = not os.path.isdir(folder)
    if made:
        os.mkdir(folder, 0o700)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise AgentError("%s is held by another process" % folder, kind="refused") from None
                time.sleep(0.02)
        for name in os.listdir(os.path.dirname(os.path.realpath(path()))):
            if name.startswith(_TEMPORARY):  # of a process that was killed while it held the lock
                os.unlink(os.path.join(os.path.dirname(os.path.realpath(path())), name))
        yield made
    finally:
        os.close(descriptor)


def _replaced(place: str, change: Callable[[Optional[bytes], str], Optional[bytes]], made: str) -> bool:
    """False where somebody else wrote the file meanwhile."""
    before, status = _read(place)
    after = change(before, "" if before is not None else made)
    if after == before:
        return True
    if status is not None and status.st_nlink > 1:
        raise AgentError("%s has several names (hard links); a rename would part them" % place, kind="refused")
    if after is None:
        os.unlink(place)
        return True
    temporary = os.path.join(os.path.dirname(place), _TEMPORARY + os.urandom(6).hex())
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        write_all(descriptor, memoryview(after))
        if status is not None:
            _take_over(descriptor, place, status)
        os.fsync(descriptor)
        if _stamp(place) != (None if status is None else _stamp_of(status)):
            return False
        os.replace(temporary, place)
    finally:
        os.close(descriptor)
        if os.path.exists(temporary):
            os.unlink(temporary)
    scratch.sync(os.path.dirname(place))
    return True


def _read(place: str) -> Tuple[Optional[bytes], Optional[os.stat_result]]:
    try:
        with open(place, "rb") as file:
            return file.read(), os.fstat(file.fileno())
    except FileNotFoundError:
        return None, None


def _take_over(descriptor: int, place: str, status: os.stat_result) -> None:
    """Owner, mode and attributes of the file that is replaced. Raises OSError where the owner can't be kept."""
    mine = os.fstat(descriptor)
    if (mine.st_uid, mine.st_gid) != (status.st_uid, status.st_gid):
        os.fchown(descriptor, status.st_uid, status.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(status.st_mode))
    for name in os.listxattr(place) if hasattr(os, "listxattr") else ():
        try:
            os.setxattr(descriptor, name, os.getxattr(place, name))
        except OSError:
            pass  # the system's own, which it sets by itself


def _stamp(place: str) -> Any:
    try:
        return _stamp_of(os.stat(place))
    except FileNotFoundError:
        return None


def _stamp_of(status: os.stat_result) -> Tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns
