"""Beside a trainer that saves, rotates and rewrites; and what reading leaves behind on its box."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from ckpt_files import Listener, Shipped, facts, look, put, reasons, states, training_state, weights

from remote_payload.agent.errors import AgentError
from remote_payload.agent.sending import send_answer
from remote_payload.agent.stream import open_source

ROOT = Path(__file__).parents[3]

_SLOW_WRITER = """
import io, sys, time, torch
path, seconds = sys.argv[1], float(sys.argv[2])
stream = io.BytesIO()
torch.save({"model": {f"l{i}": torch.full((256, 256), 2000.0) for i in range(8)}, "step": 2000}, stream)
data = stream.getvalue()
with open(path, "wb", buffering=0) as file:
    print("begun", flush=True)
    for at in range(40):
        file.write(data[at * len(data) // 40 : (at + 1) * len(data) // 40])
        time.sleep(seconds / 40)
"""


def test_a_slow_save_is_being_written_until_its_last_byte(tmp_path: Path) -> None:
    put(tmp_path / "step_1000" / "checkpoint.pt", training_state(1000))
    path = tmp_path / "step_2000" / "checkpoint.pt"
    path.parent.mkdir()
    command = [sys.executable, "-c", _SLOW_WRITER, str(path), "4"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "begun\n"
        seen = 0
        while writer.poll() is None:
            answer = look(tmp_path)
            if answer["latest"]["step"] == 2000:
                break  # its last byte was written just now
            assert answer["latest"]["step"] == 1000
            assert states(answer)["step_2000/checkpoint.pt"] == "writing", reasons(answer)
            seen += 1
        assert seen >= 3
        writer.wait()
    answer = look(tmp_path)
    assert (answer["latest"]["step"], states(answer)["step_2000/checkpoint.pt"]) == (2000, "complete")


def test_a_writer_that_pauses_is_seen_by_its_open_file(tmp_path: Path) -> None:
    put(tmp_path / "step_1000" / "checkpoint.pt", training_state(1000))
    path = tmp_path / "step_2000" / "checkpoint.pt"
    path.parent.mkdir()
    hold = "import sys; f = open(sys.argv[1], 'wb', 0); f.write(b'PK\\3\\4 half'); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        assert "a process has it open" in reasons(look(tmp_path))["step_2000/checkpoint.pt"]
        writer.communicate()
    assert states(look(tmp_path))["step_2000/checkpoint.pt"] == "torn"
    assert states(look(tmp_path, alive=True))["step_2000/checkpoint.pt"] == "writing"  # young, and training lives
    os.utime(path, (time.time() - 300,) * 2)
    assert states(look(tmp_path, alive=True))["step_2000/checkpoint.pt"] == "torn"


@pytest.mark.parametrize("way", ["rmtree", "rename"])
def test_rotation_while_shipping_is_harmless(tmp_path: Path, way: str) -> None:
    model = {f"l{i}": torch.randn(600, 600) for i in range(4)}
    put(tmp_path / "step_1" / "checkpoint.pt", {"model": model, "step": 1})
    source = open_source(str(tmp_path), "step_1/checkpoint.pt")
    chunks: Iterator[bytes] = source.chunks()
    got = [next(chunks), next(chunks)]
    if way == "rmtree":
        shutil.rmtree(tmp_path / "step_1")
    else:
        put(tmp_path / "new.pt", {"model": weights(1), "step": 2})
        os.replace(tmp_path / "new.pt", tmp_path / "step_1" / "checkpoint.pt")
    got.extend(chunks)
    source.close()
    assert sum(map(len, got)) == source.size
    with pytest.raises(AgentError, match=r"not the checkpoint that was chosen|No such file"):
        Shipped(tmp_path, "step_1/checkpoint.pt", identity=source.identity)


def test_rewriting_in_place_is_noticed_and_two_saves_are_never_mixed(tmp_path: Path) -> None:
    path = tmp_path / "ckpt.pt"

    def content(step: int) -> dict[str, Any]:
        return {"model": {f"l{i}": torch.full((300, 300), float(step)) for i in range(12)}, "iter_num": step}

    torch.save(content(1), path)
    done = threading.Event()

    def rewrite() -> None:
        step = 1
        while not done.is_set():
            step += 1
            torch.save(content(step), path)
            time.sleep(0.3)

    trainer = threading.Thread(target=rewrite)
    trainer.start()
    whole = noticed = 0
    try:
        end = time.monotonic() + 6
        while time.monotonic() < end:
            try:
                shipped = Shipped(tmp_path, "ckpt.pt", limit_rate=40e6)
            except AgentError as error:
                assert error.kind == "transfer", error
                noticed += 1
                continue
            values = {float(value) for tensor in shipped.tensors.values() for value in tensor.unique()}
            assert values == {float(shipped.account["step"])}
            whole += 1
    finally:
        done.set()
        trainer.join()
    assert whole and noticed, (whole, noticed)
    assert facts(Shipped(tmp_path, "ckpt.pt").tensors)


def test_a_checkpoint_other_than_the_chosen_one_is_not_sent(tmp_path: Path) -> None:
    path = put(tmp_path / "ckpt.pt", training_state(1))
    identity = look(tmp_path)["latest"]["identity"]
    put(path, training_state(2))
    listener = Listener()
    with pytest.raises(AgentError, match="not the checkpoint that was chosen"):
        send_answer({"root": str(tmp_path), "path": "ckpt.pt", "identity": identity}, listener)
    assert not listener.announced


def test_the_rate_is_kept(tmp_path: Path) -> None:
    put(tmp_path / "ckpt.pt", {"model": {"w": torch.zeros(500_000)}})
    began = time.monotonic()
    Shipped(tmp_path, "ckpt.pt", limit_rate=2_000_000)
    assert time.monotonic() - began > 0.9


def sparse(path: Path, tensors: int, size: int) -> None:
    """A file of `size` bytes of which only names and directory take room on the disk."""
    torch.serialization.set_crc32_options(False)
    each = size // tensors // 6
    try:
        with torch.serialization.skip_data():
            model = {f"layers.{i}.weight": torch.empty(each, dtype=torch.bfloat16) for i in range(tensors)}
            moments = {i: {"exp_avg": torch.empty(each), "step": torch.tensor(1.0)} for i in range(tensors)}
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save({"model": model, "optimizer": moments, "step": 4000}, path)
    finally:
        torch.serialization.set_crc32_options(True)


_MEASURE = """
import resource, sys, time
sys.path.insert(0, sys.argv[1])
def asked():
    return int(open("/proc/self/io").read().split()[1])
def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) * 1024
from remote_payload.agent.scan import scan
from remote_payload.agent.sending import send_answer
from remote_payload.agent import chunks
class Talk:
    def progress(self, message): self.files = message.get("files") or []
    def message(self): return {"missing": [[0, len(chunks.cut(self.files)) - 1]] if self.files else []}
    def send(self, data): pass
base, before, began = peak(), asked(), time.process_time()
found = scan(sys.argv[2], layout=None, training_alive=True, now=time.time())["latest"]
print(found["step"], time.process_time() - began, asked() - before, peak() - base)
if len(sys.argv) > 3:
    answer = send_answer({"root": sys.argv[2], "path": found["path"], "identity": found["identity"]}, Talk())
    print(answer["bytes"], peak() - base)
"""


def measure(root: Path, *more: str, python: str = sys.executable) -> list[list[float]]:
    command = [python, "-I", "-B", "-c", _MEASURE, str(ROOT), str(root), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    return [[float(value) for value in line.split()] for line in done.stdout.splitlines()]


def test_25_gigabytes_are_judged_in_half_a_second_and_two_megabytes(tmp_path: Path) -> None:
    sparse(tmp_path / "step_4000" / "checkpoint.pt", 1200, 25_000_000_000)
    assert (tmp_path / "step_4000" / "checkpoint.pt").stat().st_size > 20_000_000_000
    seconds = []
    for _ in range(3):
        step, spent, asked, grown = measure(tmp_path)[0]
        assert step == 4000
        assert asked < 2_000_000
        assert grown < 64 << 20
        seconds.append(spent)
    assert min(seconds) < 0.5, seconds


def test_shipping_takes_at_most_64_megabytes_whatever_the_size(tmp_path: Path) -> None:
    sparse(tmp_path / "step_4000" / "checkpoint.pt", 12, 6_000_000_000)
    _, (sent, grown) = measure(tmp_path, "ship")
    assert sent > 1_900_000_000
    assert grown < 64 << 20


def test_a_large_transposed_tensor_takes_no_more_memory(tmp_path: Path) -> None:
    model = {"w": torch.randn(3000, 4000).t(), "tall": torch.randn(2_000_000, 4)[:, 1]}
    put(tmp_path / "step_1" / "checkpoint.pt", {"model": model, "step": 1})
    _, (_, grown) = measure(tmp_path, "ship")
    assert grown < 64 << 20
    assert facts(Shipped(tmp_path, "step_1/checkpoint.pt").tensors) == facts(model)


def cached(path: Path) -> int:
    answer = subprocess.run(
        ["fincore", "--bytes", "--noheadings", "--output", "RES", str(path)], capture_output=True, text=True
    )
    return int(answer.stdout)


@pytest.mark.skipif(shutil.which("fincore") is None, reason="needs fincore of util-linux")
def test_the_page_cache_is_left_as_it_was_found(tmp_path: Path) -> None:
    path = put(tmp_path / "step_1" / "checkpoint.pt", {"model": {f"l{i}": torch.randn(2_000_000) for i in range(4)}})
    size = path.stat().st_size
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if cached(path) > size // 10:
        pytest.skip("this file system keeps its pages whatever is asked (tmpfs)")
    measure(tmp_path, "ship")
    assert cached(path) < 1 << 20
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    os.pread(fd, 4 << 20, 8 << 20)
    before = cached(path)
    assert before >= 4 << 20
    measure(tmp_path, "ship")
    assert before <= cached(path) < before + (1 << 20)
    os.close(fd)


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_nothing_is_written_signalled_or_locked_while_scanning_and_shipping(tmp_path: Path) -> None:
    root, log = tmp_path / "root", tmp_path / "trace"
    put(root / "step_1" / "checkpoint.pt", training_state(1))
    put(root / "step_2" / "checkpoint.pt", training_state(2))
    os.truncate(root / "step_2" / "checkpoint.pt", 500)
    before = {path: path.stat() for path in root.rglob("*")}
    calls = "trace=open,openat,creat,/unlink,/rename,/mkdir,kill,tgkill,fcntl,flock,utimensat"
    command = [sys.executable, "-I", "-B", "-c", _MEASURE, str(ROOT), str(root), "ship"]
    done = subprocess.run(["strace", "-f", "-e", calls, "-o", str(log), *command], capture_output=True, text=True)
    if done.returncode != 0 and "ptrace" in done.stderr.lower():
        pytest.skip("this machine does not let processes be traced")
    assert done.returncode == 0, done.stderr
    wrong = [
        line
        for line in log.read_text().splitlines()
        if any(word in line for word in ("O_WRONLY", "O_RDWR", "O_CREAT", "F_SETL", "F_OFD_SETL", "F_SETLEASE"))
        or any(f" {call}(" in line for call in ("unlink", "rename", "mkdir", "kill", "tgkill", "flock", "utimensat"))
    ]
    assert wrong == []
    for path, was in before.items():
        assert (path.stat().st_mtime_ns, path.stat().st_size) == (was.st_mtime_ns, was.st_size)
        assert path.is_dir() or path.stat().st_atime_ns == was.st_atime_ns


def python38() -> str | None:
    """An interpreter of the oldest version that hosts may have, where there is one."""
    places = [*map(str, Path("~/.pyenv/versions").expanduser().glob("3.8.*/bin/python")), shutil.which("python3.8")]
    return next((place for place in places if place), None)


@pytest.mark.skipif(python38() is None, reason="no Python 3.8 here")
def test_the_oldest_python_of_a_host_gives_the_same_answer(tmp_path: Path) -> None:
    put(tmp_path / "step_9" / "checkpoint.pt", training_state(9))
    old, new = (measure(tmp_path, "ship", python=python) for python in (python38() or "", sys.executable))
    assert old[0][0] == new[0][0] == 9
    assert old[1][0] == new[1][0]


SAVE = "import sys, torch; torch.save({'model': {str(i): torch.ones(1000) for i in range(400)}}, sys.argv[1])"
"""1.6 MB"""
NO_MORE = (
    "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (200000, 200000));"
)


@contextmanager
def small_disk(folder: Path, kind: str) -> Iterator[None]:
    """A file system of its own at `folder`, of 1 MB."""
    mount = ["-t", "tmpfs", "-o", "size=1m", "tmpfs"]
    if kind != "tmpfs":
        image = folder.with_name("image")
        with image.open("wb") as file:
            file.truncate(1 << 20)
        subprocess.run([f"mkfs.{kind}", "-q", "-F", str(image)], check=True)
        mount = ["-o", "loop", str(image)]
    if subprocess.run(["mount", *mount, str(folder)], capture_output=True).returncode:
        pytest.skip("needs root to mount a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("kind", ["tmpfs", "ext2", "a limit"])
def test_a_full_disk_leaves_a_torn_save(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "root"
    path = root / "step_2000" / "checkpoint.pt"
    path.parent.mkdir(parents=True)
    with nullcontext() if kind == "a limit" else small_disk(path.parent, kind):
        code = (NO_MORE if kind == "a limit" else "") + SAVE
        done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
        assert done.returncode != 0 and "unexpected pos" in done.stderr
        assert path.stat().st_size > 100_000, "it holds what fitted"
        put(root / "step_1000" / "checkpoint.pt", training_state(1000))
        assert states(look(root, alive=True))["step_2000/checkpoint.pt"] == "writing", "young, and training lives"
        os.utime(path, (time.time() - 9000,) * 2)
        answer = look(root, alive=True)
        assert (answer["latest"]["step"], states(answer)["step_2000/checkpoint.pt"]) == (1000, "torn")
        assert "did not reach its end" in reasons(answer)["step_2000/checkpoint.pt"]


def test_older_ones_that_there_was_no_time_for_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1000, 2000, 3000):
        put(tmp_path / f"step_{step}/checkpoint.pt", training_state(step))
    assert not any(row["unseen"] for row in look(tmp_path)["candidates"])
    monkeypatch.setattr("remote_payload.agent.scan.OLDER", 0.0)
    answer = look(tmp_path)
    assert [row["step"] for row in answer["candidates"] if row["unseen"]] == [2000, 1000]
    assert answer["latest"]["step"] == 3000


def test_what_was_torn_when_shipped_stays_so_until_it_is_written_anew_and_copies_are_not_it(tmp_path: Path) -> None:
    original = put(tmp_path / "step_1000/checkpoint.pt", training_state(1000))
    copy = tmp_path / "step_2000" / "checkpoint.pt"
    copy.parent.mkdir()
    shutil.copy2(original, copy)
    latest = look(tmp_path)["latest"]
    assert latest["path"] == "step_2000/checkpoint.pt"
    torn = [{key: latest[key] for key in ("path", "identity", "stamp")}]
    answer = look(tmp_path, torn=torn)
    assert answer["latest"]["path"] == "step_1000/checkpoint.pt" and answer["latest"]["identity"] == latest["identity"]
    assert states(answer)["step_2000/checkpoint.pt"] == "torn"
    assert "written anew" in reasons(answer)["step_2000/checkpoint.pt"]
    copy.touch()
    assert look(tmp_path, torn=torn)["latest"]["path"] == "step_2000/checkpoint.pt"
