"""One line in somebody's authorized_keys for a while, and the doors that it opens: nothing else is touched."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from evalhost import as_nobody, wait_until
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from remote_payload.agent import authorizedkeys, chunks
from remote_payload.agent.doors import Doors
from remote_payload.agent.errors import AgentError
from remote_payload.agent.incoming import Incoming

ID, OTHER = "0123456789abcdef", "fedcba9876543210"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJyYW5kbmV3"


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this user's authorized_keys would be, in a home of its own; neither file nor folder is there."""
    monkeypatch.setattr("pwd.getpwuid", lambda user: SimpleNamespace(pw_dir=str(tmp_path)))
    return tmp_path / ".ssh" / "authorized_keys"


def enter(identity: str = ID, life: float = 60) -> None:
    authorizedkeys.enter(identity, KEY, ["10.0.0.1"], 'exec sh -c "true"', life)


def written(keys: Path, content: bytes) -> None:
    keys.parent.mkdir(mode=0o700, exist_ok=True)
    keys.write_bytes(content)
    keys.chmod(0o640)


line = st.one_of(st.binary(max_size=60), st.just(KEY.encode() + b" me@here"), st.just(b"# orch-0123456789abcdef x"))


@given(lines=st.lists(line, max_size=5), end=st.sampled_from([b"", b"\n", b"\n\n", b"\r\n"]))
@example(lines=[b'restrict,from="*" x orch-zz until:1'], end=b"")
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_other_byte_stays_whatever_the_file_holds(keys: Path, lines: list[bytes], end: bytes) -> None:
    content = b"\n".join(lines) + end
    written(keys, content)
    enter()
    enter(OTHER)
    enter()  # renewed
    during = keys.read_bytes()
    assert during.startswith(content)
    added = during[len(content) :].lstrip(b"\n")
    assert added.count(b"\n") == 2 and added.count(b" orch-") == 2
    authorizedkeys.remove(ID)
    authorizedkeys.remove(OTHER)
    assert keys.read_bytes() == content and keys.stat().st_mode & 0o7777 == 0o640
    assert os.listdir(keys.parent) == ["authorized_keys"]


def test_what_was_made_for_the_line_goes_with_it(keys: Path) -> None:
    enter()
    assert keys.stat().st_mode & 0o777 == 0o600 and keys.parent.stat().st_mode & 0o777 == 0o700
    authorizedkeys.remove(ID)
    assert not keys.parent.exists()
    written(keys, b"")
    enter()
    authorizedkeys.remove(ID)
    assert keys.read_bytes() == b"", "an empty file that was there stays"


def test_the_last_of_several_lines_takes_away_what_the_first_one_made(keys: Path) -> None:
    enter()
    enter(OTHER)
    enter()
    authorizedkeys.remove(ID)
    assert keys.exists()
    authorizedkeys.remove(OTHER)
    assert not keys.parent.exists()


def test_what_others_write_meanwhile_stays(keys: Path) -> None:
    written(keys, b"one")
    enter()
    with keys.open("ab") as file:
        file.write(b"two\n")
    authorizedkeys.remove(ID)
    assert keys.read_bytes() == b"one\ntwo\n"


def test_two_that_change_it_at_once_both_succeed(keys: Path) -> None:
    written(keys, b"mine\n")
    threads = [threading.Thread(target=enter, args=(f"{number:016x}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert keys.read_bytes().count(b" orch-") == 8
    for number in range(8):
        authorizedkeys.remove(f"{number:016x}")
    assert keys.read_bytes() == b"mine\n"


def test_a_sweep_takes_lines_of_the_dead_and_the_expired_and_leaves_those_of_the_living(keys: Path) -> None:
    written(keys, b"mine\n")
    pid = os.fork()
    if pid == 0:
        enter("aaaaaaaaaaaaaaaa")
        os._exit(0)
    os.waitpid(pid, 0)
    enter("bbbbbbbbbbbbbbbb", life=-100)
    enter(ID)
    authorizedkeys.sweep()
    assert re.findall(rb" orch-(\w+)", keys.read_bytes()) == [ID.encode()]


def test_addresses_that_are_none_are_not_written(keys: Path) -> None:
    for bad in ([], ["10.0.0.1,*"], ['10.0.0.1" ssh-rsa'], ["*"]):
        with pytest.raises(AgentError, match="no addresses"):
            authorizedkeys.enter(ID, KEY, bad, "true")
    assert not keys.exists()


class Talk:
    """What doors need of a conversation."""

    def __init__(self) -> None:
        self.last: list[Callable[[], None]] = []

    def at_end(self, act: Callable[[], None]) -> None:
        self.last.append(act)


def doors(folder: Path, talk: Talk, life: float = 60) -> tuple[Doors, Incoming, str]:
    (folder / "in").mkdir()
    coming = Incoming(str(folder / "in"), [{"path": "model", "size": 5}], "plan", 4)
    name = f"orch-test-{os.urandom(8).hex()}"
    asked = {"id": ID, "name": name, "public": KEY, "command": "true", "life": life}
    return Doors(asked, coming, lambda: None, talk), coming, name


def hand_over(name: str, data: bytes) -> None:
    """Do as the forced command does: give the door the reading end of a pipe that holds this."""
    reader, writer = os.pipe()
    os.write(writer, data)
    os.close(writer)
    with socket.socket(socket.AF_UNIX) as door:
        door.connect(b"\0" + name.encode())
        door.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [reader]))])
        os.close(reader)
        door.settimeout(5)
        door.recv(1)  # until it is read out


def framed(number: int, data: bytes) -> bytes:
    before, behind = chunks.frame(number, [memoryview(data)])
    return before + data + behind


def test_a_line_is_renewed_while_it_is_needed_and_goes_when_the_agent_ends(keys: Path, tmp_path: Path) -> None:
    talk = Talk()
    open_doors, coming, _ = doors(tmp_path, talk, life=2.0)
    assert open_doors.open(["10.0.0.1"])["line"].endswith(f"orch-{ID}")
    first = keys.read_bytes()
    wait_until(lambda: keys.read_bytes() != first, 5)
    (expiry,) = re.findall(rb'expiry-time="(\d+)"', keys.read_bytes())
    assert expiry > re.findall(rb'expiry-time="(\d+)"', first)[0]
    for act in talk.last:
        act()
    assert not keys.exists()
    time.sleep(1.2)
    assert not keys.exists(), "and it does not come back"
    coming.close()


def test_chunks_come_in_by_a_door_whole_or_not_at_all(keys: Path, tmp_path: Path) -> None:
    open_doors, coming, name = doors(tmp_path, Talk())
    hand_over(name, framed(0, b"abcd")[:-3])
    hand_over(name, b"no chunk at all" * 9)
    open_doors.wait()
    assert coming.missing() == [[0, 1]]
    hand_over(name, framed(1, b"e") + framed(0, b"abcd"))
    open_doors.wait()
    assert coming.missing() == [] and (tmp_path / "in" / "files" / "model").read_bytes() == b"abcde"
    open_doors.close()
    with pytest.raises(OSError):
        hand_over(name, b"")
    coming.close()


def test_nobody_elses_processes_come_in(keys: Path, tmp_path: Path) -> None:
    open_doors, coming, name = doors(tmp_path, Talk())

    def knock() -> str:
        try:
            hand_over(name, framed(0, b"abcd"))
        except OSError:
            return "turned away"
        return "let in"

    assert as_nobody(knock) == "turned away"
    open_doors.wait()
    assert coming.missing() == [[0, 1]]
    open_doors.close()
    coming.close()
