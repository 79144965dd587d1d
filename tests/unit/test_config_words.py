"""Sizes, durations, GPU ranges and targets: every reading, and no reading of nonsense."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from orchestrator.config import units, words
from orchestrator.config.kinds import Duration, Gpus, Size, Target
from remote_payload.agent import limits

KINDS = [TypeAdapter(kind) for kind in (Size, Duration, Gpus, Target)]
ANY = st.text(max_size=12)
NEARLY = st.text(alphabet="0123456789.,-: smhdiKMGTB", max_size=10)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("60GiB", 60 * 2**30),
        ("512MiB", 2**29),
        ("1048576", 2**20),
        ("1.5GB", 1_500_000_000),
        ("64 kib", 65536),
        ("7B", 7),
    ],
)
def test_sizes(written, expected):
    assert units.size(written) == expected


@pytest.mark.parametrize(
    "written", ["", "GiB", "60G", "60 gibi", "-1GiB", "0", "1e9", "0x10", "٣GiB", "9EiB", "9999999TiB"]
)
def test_no_sizes(written):
    with pytest.raises(ValueError):
        units.size(written)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("6h", 21600),
        ("90s", 90),
        ("90", 90),
        ("1h30m", 5400),
        ("1h 30min", 5400),
        ("250ms", 0.25),
        ("2d", 172800),
        ("0.5", 0.5),
    ],
)
def test_durations(written, seconds):
    assert units.duration(written) == seconds


@pytest.mark.parametrize(
    "written", ["", "h", "1:30", "6hours", "1h1h", "-1s", "0", "0s", "99999d", "1h,30m", "inf", "nan", "1e3"]
)
def test_no_durations(written):
    with pytest.raises(ValueError):
        units.duration(written)


@given(st.integers(1, 2**20), st.sampled_from(["", "B", "kB", "KiB", "MB", "MiB", "GB", "GiB", "TB", "TiB"]))
def test_every_size_reads_as_its_number_times_its_unit(number, unit):
    assert units.size(f"{number}{unit}") == number * units.SIZE_UNITS[unit.lower()]


@given(st.integers(0, 99), st.integers(0, 23), st.integers(0, 59), st.integers(1, 59))
def test_every_compound_duration_adds_up(days, hours, minutes, seconds):
    assert units.duration(f"{days}d{hours}h{minutes}m{seconds}s") == ((days * 24 + hours) * 60 + minutes) * 60 + seconds


@given(st.sets(st.integers(0, 200), min_size=1, max_size=20))
def test_every_set_of_gpus_written_one_by_one_reads_back(gpus):
    assert units.gpu_range(",".join(map(str, sorted(gpus)))) == tuple(sorted(gpus))


@given(st.integers(0, 500), st.integers(0, 500))
def test_every_rising_range_is_read_whole(first, more):
    assert units.gpu_range(f"{first}-{first + more}") == tuple(range(first, first + more + 1))


@given(ANY | NEARLY)
def test_any_text_is_read_or_refused_with_what_was_expected(text):
    for parse in (units.size, units.duration, units.gpu_range, units.whole_number, words.ssh_target, words.progress):
        try:
            parse(text)
        except ValueError as error:
            assert str(error)


@given(NEARLY)
def test_the_schema_accepts_all_that_the_reader_accepts(text):
    for kind in KINDS:
        try:
            kind.validate_python(text)
        except ValueError:
            continue
        patterns = [
            option["pattern"] for option in kind.json_schema().get("anyOf", [kind.json_schema()]) if "pattern" in option
        ]
        assert re.fullmatch(r"[0-9.]+", text) or any(re.search(pattern, text) for pattern in patterns)


@pytest.mark.parametrize(
    "target", ["ct200", "root@10.1.2.6", "root@10.1.2.6:2222", "me@[fe80::1%eth0]:22", "a_b.c-d", "ssh://me@h:22"]
)
def test_targets(target):
    assert words.ssh_target(target) == target


@given(
    st.text(max_size=8),
    st.sampled_from([*" \t\n\r\0\x1b\x7f\x85\u00a0\u2028\u202e\u200b$`;|&<>\"'\\"]),
    st.text(max_size=8),
)
def test_no_target_holds_what_a_shell_or_terminal_could_read(before, char, after):
    with pytest.raises(ValueError):
        words.ssh_target(before + char + after)


@given(st.text(max_size=8))
def test_no_target_begins_like_an_option(text):
    for target in ("-" + text, "user@-" + text.replace("@", "")):
        with pytest.raises(ValueError):
            words.ssh_target(target)


def test_a_job_can_set_no_variable_by_which_the_agent_hides_gpus():
    assert set(limits.HIDDEN_GPUS) == words.GPU_VARIABLES
