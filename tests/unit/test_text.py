"""What tables show: foreign text made harmless, numbers short, colours and signs as the terminal can take them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import amounts
from orchestrator.reports import text


@pytest.mark.parametrize(
    ("foreign", "safe"),
    [
        ("step_4000", "step_4000"),
        ("naïve 日本 ✓", "naïve 日本 ✓"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("a\nb\rc\td", "a\\nb\\rc\\td"),
        ("gpj.\u202eexe", "gpj.\\u202eexe"),
        ("\u2066a\u2069\u200b\ufeff", "\\u2066a\\u2069\\u200b\\ufeff"),
        ("\u2028", "\\u2028"),
        ("\udcff", "\\udcff"),
        (b"caf\xc3\xa9 \xff\x00", "café \\xff\\x00"),
    ],
)
def test_text_from_hosts_can_not_move_the_cursor_or_turn_the_line(foreign, safe):
    assert text.shown(foreign) == safe


@given(st.text() | st.binary(), st.integers(0, 50))
def test_whatever_a_host_sends_is_one_printable_line_within_the_limit(foreign, limit):
    shown = text.shown(foreign, limit)
    assert shown.isprintable()
    assert len(shown) <= limit
    shown.encode("utf-8")


@given(st.text(alphabet=st.characters(categories=["L", "N", "P"]), max_size=200))
def test_harmless_text_within_the_limit_is_unchanged(harmless):
    assert text.shown(harmless) == text.shown(harmless.encode()) == harmless


def test_what_was_cut_says_so_and_no_escape_is_halved():
    assert text.shown("x" * 300, 10) == "xxxxxxx..."
    assert text.shown("\x1b" * 10, 12) == "\\x1b\\x1b..."
    assert text.shown("é".encode() * 150) == "é" * 150
    assert len(text.shown("y" * 50_000_000)) == text.LIMIT


def test_logs_keep_their_lines_and_say_how_many_were_left_out():
    assert text.shown_lines(b"a\tb\r\n\x1bc\n") == ["a       b", "\\x1bc"]
    assert text.shown_lines("1\n2\n3\n4", lines=2) == ["1", "2", "... 2 more lines"]
    assert text.shown_lines("") == []


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (amounts.size(3_750_000_000), "3.75 GB"),
        (amounts.size(0), "0 B"),
        (amounts.size(999), "999 B"),
        (amounts.size(999_960), "1 MB"),
        (amounts.size(10_000_000), "10 MB"),
        (amounts.size(123_456), "123 kB"),
        (amounts.memory(60 * 2**30), "60 GiB"),
        (amounts.memory(1536), "1.5 KiB"),
        (amounts.throughput(112_300_000), "112 MB/s"),
        (text.rate(19_500, "tok/s"), "19.5K tok/s"),
        (text.rate(987.6, "it/s"), "988 it/s"),
        (text.rate(0.25, "it/s\x1b"), "0.25 it/s\\x1b"),
        (amounts.count(5296), "5.3K"),
        (amounts.count(1_200_000), "1.2M"),
        (amounts.count(999_990), "1M"),
        (amounts.count(0), "0"),
        (amounts.duration(0), "0 s"),
        (amounts.duration(0.25), "250 ms"),
        (amounts.duration(1.5), "1.5 s"),
        (amounts.duration(12), "12 s"),
        (amounts.duration(59.7), "1 min 00 s"),
        (amounts.duration(200), "3 min 20 s"),
        (amounts.duration(3900), "1 h 05 min"),
        (amounts.duration(3599.7), "1 h 00 min"),
        (amounts.duration(2 * 86400 + 3 * 3600), "2 d 03 h"),
        (amounts.duration(86399), "1 d 00 h"),
        (amounts.duration(-5), "-5 s"),
        (amounts.decimal(3.5124), "3.512"),
        (amounts.decimal(-0.0984, "+"), "-0.098"),
        (amounts.decimal(999_999.5), "999999.500"),
        (amounts.decimal(1_234_567), "1.235e+06"),
        (amounts.decimal(1e308, "+"), "+1e+308"),
        (amounts.ago(12), "12 s ago"),
        (amounts.ago(-3), "just now"),
        (amounts.ago(-7200), "in 2 h 00 min"),
    ],
)
def test_numbers_as_people_read_them(shown, expected):
    assert shown == expected


@given(st.floats(0, 1e17, allow_nan=False))
def test_no_number_grows_long(number):
    for shown in (amounts.size(number), amounts.memory(number), amounts.count(number), amounts.duration(number % 1e9)):
        assert len(shown) <= 14
    assert number > 9e17 or "1000 " not in amounts.size(number)


@pytest.mark.parametrize(
    ("environ", "terminal", "expected"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"TERM": "dumb"}, True, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "0"}, True, False),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, False, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
    ],
)
def test_colours_follow_the_environment_then_the_terminal(environ, terminal, expected):
    assert text.wants_colour(environ, terminal) is expected


def test_a_terminal_without_utf_8_is_known_by_its_encoding():
    assert [text.speaks_unicode(name) for name in ("utf-8", "UTF8", "ANSI_X3.4-1968", "latin-1", None)] == [
        True,
        True,
        False,
        False,
        False,
    ]
