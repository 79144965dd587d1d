"""command_line: any argv word reaches the command unchanged through bash, fish and tcsh."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from orchestrator.ssh.connection import command_line

ECHO = [sys.executable, "-I", "-S", "-c", "import os, sys; os.write(1, b'\\0'.join(map(os.fsencode, sys.argv[1:])))"]
NASTY = ["'", '"', "\\", "\\\\", "\\'", "!", "!!", "!a", "$HOME", "$(id)", "`id`", "\n", "a\n\nb\n", "\\\n", "\t", "\r"]
NASTY += [
    "é",
    "日本",
    "\udcff\udcfe",
    "*",
    "~",
    "~root",
    "#",
    "%1",
    "=1",
    "",
    " ",
    "-n",
    "a=b",
    "{a,b}",
    "^a^b",
    "\x7f",
    "\x1b[31m",
]
WORD = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
    st.text("'\"\\!$`\n \t;&|<>(){}[]*?~#%^=@-aZ0é", max_size=12),
    st.sampled_from(NASTY),
)


@pytest.fixture(params=["bash", "fish", "tcsh"])
def shell(request: pytest.FixtureRequest) -> list[str]:
    program = shutil.which(request.param)
    if program is None:
        pytest.skip(f"no {request.param} here")
    return [program, "-c"]


def through(shell: list[str], argv: list[str], home: str) -> list[bytes]:
    done = subprocess.run(
        [*shell, command_line([*ECHO, *argv])],
        capture_output=True,
        env={"PATH": os.environ["PATH"], "HOME": home, "LANG": "C.UTF-8"},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split(b"\0")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(WORD, min_size=1, max_size=12))
@example(words=NASTY)
@example(words=[word + "x" for word in NASTY])
@example(words=[a + b for a in NASTY[:16] for b in NASTY[:16]])
@example(words=["x" * 20000, "'" * 3000])
def test_every_word_reaches_the_command_unchanged(shell: list[str], tmp_path: object, words: list[str]) -> None:
    assert through(shell, words, str(tmp_path)) == [os.fsencode(word) for word in words]


def test_a_name_is_a_program_and_never_a_function_or_builtin_of_the_login_shell(shell: list[str]) -> None:
    """fish has a function `ls`, bash a builtin `pwd` that accepts no --version."""
    done = subprocess.run([*shell, command_line(["pwd", "--version"])], capture_output=True, timeout=60)
    assert b"coreutils" in done.stdout


@pytest.mark.parametrize("argv", [[], [""], ["-c"], ["a\0b"], ["a", "\0"]])
def test_what_is_no_command_is_refused(argv: list[str]) -> None:
    with pytest.raises(ValueError):
        command_line(argv)


def test_plain_words_stay_readable() -> None:
    assert command_line(["python3", "-I", "a b"]) == "exec python3 -I 'a b'"
