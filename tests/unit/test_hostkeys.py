"""Host keys: own reading of known_hosts finds what ssh-keygen finds, and the verdicts are OpenSSH's."""

from __future__ import annotations

import base64
import shutil
import struct
import subprocess
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.errors import HostKeyError
from orchestrator.ssh.hostkeys import (
    HostKey,
    KnownKey,
    Marker,
    check,
    find_lines,
    judge,
    known_keys,
    known_names,
    signature_algorithms,
)
from orchestrator.ssh.resolve import Settings, Target

needs_ssh_keygen = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen here")


def key(name: str, kind: str = "ssh-ed25519") -> HostKey:
    """A key blob of the right form: type, then a value of 32 bytes."""
    value = name.encode().ljust(32, b".")
    return HostKey(type=kind, blob=b"".join(struct.pack(">I", len(part)) + part for part in (kind.encode(), value)))


def text_of(shown: HostKey) -> str:
    return f"{shown.type} {base64.b64encode(shown.blob).decode()}"


def settings_for(hostname: str = "box", port: int = 22, **options: str) -> Settings:
    given_options = {name: (value,) for name, value in options.items()}
    target = Target(host=hostname, port=None if port == 22 else port)
    return Settings(target=target, hostname=hostname, port=port, user="root", options=MappingProxyType(given_options))


def known(shown: HostKey, name: str = "box", marker: Marker = "", line: int = 1) -> KnownKey:
    return KnownKey(file=Path("/k"), line=line, name=name, marker=marker, key=shown)


def test_a_fingerprint_is_the_one_that_ssh_prints(tmp_path: Path) -> None:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("no ssh-keygen here")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "k")], check=True)
    kind, blob = (tmp_path / "k.pub").read_text().split()[:2]
    printed = subprocess.run(["ssh-keygen", "-l", "-f", str(tmp_path / "k")], capture_output=True, text=True).stdout
    assert HostKey(type=kind, blob=base64.b64decode(blob)).fingerprint == printed.split()[1]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ("box",)),
        ({"hostname": "BOX.Example.org"}, ("box.example.org",)),
        ({"port": 2200}, ("[box]:2200", "box")),
        ({"port": 2200, "hostkeyalias": "Alias"}, ("alias",)),
        ({"hostname": "::1", "port": 23}, ("[::1]:23", "::1")),
    ],
)
def test_the_names_of_a_host_are_those_under_which_ssh_looks(options: dict[str, str | int], names: object) -> None:
    assert known_names(settings_for(**options)) == names  # type: ignore[arg-type]


A, B, RSA = key("a"), key("b"), key("r", "ssh-rsa")
PORT = ("[box]:22", "box")


@pytest.mark.parametrize(
    ("lines", "names", "verdict"),
    [
        ([], ("box",), "unknown"),
        ([known(A)], ("box",), "known"),
        ([known(B)], ("box",), "changed"),
        ([known(B), known(A)], ("box",), "known"),
        ([known(RSA)], ("box",), "unknown"),
        ([known(RSA), known(A)], ("box",), "known"),
        ([known(A), known(A, marker="@revoked")], ("box",), "revoked"),
        ([known(A), known(B, marker="@revoked")], ("box",), "known"),
        ([known(A, marker="@cert-authority")], ("box",), "unknown"),
        ([known(A)], PORT, "known"),
        ([known(B)], PORT, "unknown"),
        ([known(B, "[box]:22"), known(A)], PORT, "changed"),
        ([known(A, "[box]:22"), known(B)], PORT, "known"),
    ],
)
def test_verdicts_are_those_of_openssh(lines: list[KnownKey], names: tuple[str, ...], verdict: str) -> None:
    assert judge(lines, names, A) == verdict


def test_types_that_are_known_are_asked_for_first() -> None:
    possible = ("ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512", "rsa-sha2-256")
    order = signature_algorithms(settings_for(), [known(RSA)], possible)
    assert order == ("rsa-sha2-512", "rsa-sha2-256", "ssh-ed25519", "ecdsa-sha2-nistp256")
    only = settings_for(hostkeyalgorithms="ssh-ed25519-cert-v01@openssh.com,rsa-sha2-256,ssh-ed25519")
    assert signature_algorithms(only, [], possible) == ("rsa-sha2-256", "ssh-ed25519")


def test_a_changed_key_says_file_line_fingerprints_and_what_to_type() -> None:
    line = KnownKey(file=Path("/home/me/known hosts"), line=7, name="[box]:2200", marker="", key=B)
    with pytest.raises(HostKeyError) as caught:
        check(settings_for(port=2200), [line], A, "train")
    assert caught.value.message.startswith("train: the host key has CHANGED: /home/me/known hosts:7 has ED25519 ")
    assert A.fingerprint in caught.value.message and B.fingerprint in caught.value.message
    assert "ssh-keygen -R '[box]:2200' -f '/home/me/known hosts'" in caught.value.hint
    assert caught.value.hint.endswith("ssh -p 2200 box")


NAME = st.sampled_from(["box", "[box]:2200", "a.example.org", "10.0.0.1", "b"])
PATTERN = st.sampled_from(
    ["box", "BOX", "*", "b?x", "?", "*.example.org", "!box", "!a.*", "10.0.0.*", "[box]:2200", "[box]:*", "b*,!box"]
)
FIELD = st.lists(PATTERN, min_size=1, max_size=3).map(",".join)
REST = st.sampled_from([text_of(A), text_of(B), text_of(RSA), f"{text_of(A)} a comment", "ssh-ed25519 AAAA"])
BROKEN = st.sampled_from(["", "# box", "box", "box ssh-ed25519", "ssh-ed25519 AAAA", "\t"])
LINE = st.one_of(
    st.tuples(st.sampled_from(["", "", "@revoked ", "@cert-authority "]), FIELD, REST).map(
        lambda parts: f"{parts[0]}{parts[1]} {parts[2]}"
    ),
    BROKEN,
)


@needs_ssh_keygen
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=NAME, lines=st.lists(LINE, max_size=8), hashed=st.booleans())
def test_own_reading_finds_the_lines_that_ssh_keygen_finds(
    tmp_path: Path, name: str, lines: list[str], hashed: bool
) -> None:
    file = tmp_path / "known_hosts"
    file.write_text("".join(f"{line}\n" for line in lines))
    if hashed:
        subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], capture_output=True)
    alias = settings_for(hostkeyalias=name, userknownhostsfile=str(file))
    assert list(known_keys(alias, openssh=True)) == find_lines(name, file)


def test_lines_about_the_host_come_from_all_files_that_exist(tmp_path: Path) -> None:
    first, second = tmp_path / "one file", tmp_path / "two"
    first.write_text(f"box {text_of(A)}\n")
    second.write_text(f"# a comment\nbox {text_of(B)}\n")
    options = {"userknownhostsfile": f"{first} {tmp_path / 'none'}", "globalknownhostsfile": str(second)}
    found = known_keys(settings_for(**options), openssh=False)  # type: ignore[arg-type]
    assert [(line.file, line.line, line.key) for line in found] == [(first, 1, A), (second, 2, B)]
