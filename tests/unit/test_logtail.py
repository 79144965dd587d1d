"""Reading the end of a log leaves no trace: access time and page cache stay as they were."""

from __future__ import annotations

import os

import pytest

from remote_payload.agent import logtail


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "train.log"
    path.write_bytes(b"step 1 loss 2.0\n" * 65_536)  # 1 MiB
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    return path


def absent(path) -> int:
    """Bytes of the file that are not in the page cache."""
    with open(path, "rb") as file:
        return sum(length for _, length in logtail._absent_pages(file.fileno(), 0, path.stat().st_size))


def drop(path, offset: int, size: int) -> None:
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), offset, size, os.POSIX_FADV_DONTNEED)


def test_the_access_time_stays(log):
    os.utime(log, ns=(0, 10**18))  # older than the last change: an ordinary read would set it
    assert logtail.read_tail(str(log), 4096).lines
    assert log.stat().st_atime_ns == 0


def test_pages_that_reading_brought_in_are_dropped_and_others_stay(log):
    size = log.stat().st_size
    drop(log, 0, size)
    if absent(log) < size:
        pytest.skip("this file system keeps the pages of its files")
    logtail.read_tail(str(log), 256 * 1024)
    assert absent(log) == size
    with open(log, "rb") as file:  # one page of the tail is the trainer's own
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(file.fileno(), 4096, size - 65_536)
    before = absent(log)
    assert before < size
    tail = logtail.read_tail(str(log), 256 * 1024)
    assert len(tail.lines) == 256 * 1024 // 16 - 1
    assert absent(log) == before


def test_warm_pages_stay_warm(log):
    log.read_bytes()
    logtail.read_tail(str(log), 256 * 1024)
    assert absent(log) == 0


def test_a_file_that_shrinks_meanwhile_gives_what_is_left(log):
    descriptor = logtail.open_quietly(str(log))
    try:
        os.truncate(log, 100)
        assert len(logtail.read_leaving_cache(descriptor, 0, 1 << 20)) == 100
        assert logtail.read_leaving_cache(descriptor, 5000, 10) == b""
    finally:
        os.close(descriptor)


def test_lines_end_at_carriage_returns_and_an_unfinished_one_is_left_out():
    assert logtail.lines_of(b"a\r\nb\rc\nd") == ["a", "b", "c"]
    assert logtail.lines_of(b"x\na\nb\n", cut_first=True) == ["a", "b"]
    assert logtail.lines_of(b"\r 1/2 [00:01<00:01]\r 2/2 [00:02<00:00]") == ["1/2 [00:01<00:01]", "2/2 [00:02<00:00]"]
    assert logtail.lines_of(b"\r 1/2 [00:01<00:01]\r 2/2 [00:0") == ["1/2 [00:01<00:01]"]
    assert logtail.lines_of(b"y" * 10_000 + b"\n") == ["y" * logtail.LONGEST_LINE]
