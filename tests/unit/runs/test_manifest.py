"""The manifest of a harness folder, and the three-way comparison."""

from __future__ import annotations

import os
import random
import re
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from evalhost import HARNESS, write_files
from hypothesis import given
from hypothesis import strategies as st

from remote_payload.agent import manifest
from remote_payload.agent.errors import AgentError
from remote_payload.agent.ignore import Rules, parse


def paths(root: Path, **options: Any) -> list[str]:
    return [entry["path"] for entry in manifest.build(str(root), **options)]


def test_a_manifest_is_sorted_and_keeps_only_the_executable_bit(tmp_path: Path) -> None:
    write_files(tmp_path, HARNESS)
    (tmp_path / "eval.py").chmod(0o600)
    entries = manifest.build(str(tmp_path))
    assert [(entry["path"], oct(entry["mode"])) for entry in entries] == [
        ("eval.py", "0o644"),
        ("lib/util.py", "0o644"),
        ("run.sh", "0o755"),
    ]
    assert entries[1]["size"] == 10 and len(entries[1]["sha256"]) == 64


def test_the_digest_names_path_mode_and_content_and_nothing_else(tmp_path: Path) -> None:
    one = write_files(tmp_path / "one", HARNESS)
    two = write_files(tmp_path / "two", HARNESS)
    os.utime(two / "eval.py", (1, 1))
    name = manifest.digest(manifest.build(str(one)))
    assert manifest.digest(reversed(manifest.build(str(two)))) == name
    (two / "run.sh").chmod(0o644)
    assert manifest.digest(manifest.build(str(two))) != name


def test_caches_results_weights_and_environments_are_no_harness(tmp_path: Path) -> None:
    ignored = ["__pycache__/a.pyc", ".git/HEAD", ".orch/synced.json", "cached_hidden_states/x.json", "checkpoints/a"]
    ignored += ["lib/results/a.txt", "model.pt", "a.safetensors", "pytorch_model.bin", "eval_results-2.json", "logs/x"]
    ignored += ["progress.jsonl", "env/pyvenv.cfg", "env/lib/site.py", "lib/__pycache__/b.py"]
    write_files(tmp_path, {**HARNESS, **dict.fromkeys(ignored, "x")})
    assert paths(tmp_path) == sorted(HARNESS)


def test_orchignore_adds_rules_and_takes_them_back(tmp_path: Path) -> None:
    write_files(tmp_path, {**HARNESS, "results/keep.py": "", "notes.md": "", "lib/notes.md": "", "tmp/x/y.py": ""})
    (tmp_path / ".orchignore").write_text("# mine\n/notes.md\n!results/\ntmp/**\n")
    assert paths(tmp_path) == sorted([".orchignore", *HARNESS, "lib/notes.md", "results/keep.py"])
    assert "tmp/x/y.py" in paths(tmp_path, patterns=[])


@pytest.mark.parametrize(
    ("pattern", "path", "ignored"),
    [
        ("*.md", "a/b.md", True),
        ("/*.md", "a/b.md", False),
        ("a/**/c", "a/c", True),
        ("a/**/c", "a/x/y/c", True),
        ("a?c", "a/c", False),
        ("[ab].txt", "b.txt", True),
        ("[!ab].txt", "b.txt", False),
        ("[z-a]", "z", False),
        ("[", "[", False),
        ("[]a]", "]", True),
        ("[[:digit:]-]", "7", True),
        ("a**b", "a/b", False),
        ("a/**", "a", False),
        ("trailing\\ ", "trailing ", True),
        ("\\!kept", "!kept", True),
        ("\\#kept", "#kept", True),
        ("folder/", "folder", False),
        ("a+b(.py", "a+b(.py", True),
    ],
)
def test_ignore_rules_read_as_git_reads_them(pattern: str, path: str, ignored: bool) -> None:
    assert Rules(parse(pattern)).ignored(path, folder=False) is ignored


ATOMS = ["a", "b", "*", "?", "**/", "/**/", "/", "[ab]", "[!a]", "[]a]", "[a-c]", ".", "!", "#", "\\", " ", "*.py", "["]
NAMES = ["a", "b", "ab", "a.py", "#a", "!a", "a b", "*", "a ", "]", "[", ".a"]
PLACES = [
    *NAMES,
    *(f"{one}/{two}" for one in NAMES for two in NAMES),
    *(f"a/{one}/{two}" for one in NAMES for two in "ab"),
]


def test_generated_rules_read_as_git_reads_them(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    ask = ["git", "-C", str(tmp_path), "check-ignore", "--no-index", "-z", "-v", "-n", "--stdin"]
    draw = random.Random(7)
    for _ in range(120):
        pattern = "".join(draw.choices(ATOMS, k=draw.randint(1, 4)))
        if re.search(r"[^/*]\*\*", pattern):
            continue  # git takes a literal beginning off, and then reads the stars otherwise than its manual
        (tmp_path / ".gitignore").write_text(pattern + "\n")
        told = subprocess.run(ask, input="\0".join(PLACES), capture_output=True, text=True).stdout.split("\0")
        rows = zip(*[iter(told[:-1])] * 4, strict=True)
        by_git = {path for source, _, rule, path in rows if source and not rule.startswith("!")}
        rules = Rules(["!**", *parse(pattern)])
        assert {path for path in PLACES if _left_out(rules, path)} == by_git, pattern


def _left_out(rules: Rules, path: str) -> bool:
    parts = path.split("/")
    return any(rules.ignored("/".join(parts[:end]), end < len(parts)) for end in range(1, len(parts) + 1))


@given(st.text(max_size=20), st.text(max_size=20))
def test_no_ignore_rule_breaks_the_reading(pattern: str, path: str) -> None:
    Rules([pattern]).ignored(path, folder=True)


def test_links_inside_count_as_their_file_and_others_are_left_out_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_files(tmp_path / "h", HARNESS)
    (tmp_path / "secret").write_text("outside")
    (root / "same.py").symlink_to("eval.py")
    (root / "out.py").symlink_to(tmp_path / "secret")
    (root / "dangling.py").symlink_to("nowhere")
    (root / "folder").symlink_to(root / "lib")
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(root)
        server.bind("sock")
    notes: list[str] = []
    assert paths(root, notes=notes) == sorted([*HARNESS, "same.py"])
    assert sorted(note.split("'")[1] for note in notes) == ["dangling.py", "folder", "out.py", "pipe", "sock"]


@pytest.mark.parametrize("name", [b"line\nbreak.py", b"latin-\xe9.py", b"bell\x07"])
def test_an_odd_name_is_an_error_that_names_it(tmp_path: Path, name: bytes) -> None:
    (tmp_path / "ok.py").write_text("")
    with open(os.path.join(os.fsencode(tmp_path), name), "w"):
        pass
    with pytest.raises(AgentError, match="can't be part of a harness") as raised:
        manifest.build(str(tmp_path))
    assert raised.value.message.isprintable() and raised.value.message.isascii()


def test_names_with_spaces_quotes_and_accents_are_ordinary(tmp_path: Path) -> None:
    names = ["a b.py", 'it\'s "$(x)".py', "-n", "üñ.py", "[x]*.py", "back\\slash.py"]
    write_files(tmp_path, dict.fromkeys(names, "x"))
    assert paths(tmp_path) == sorted(names)


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="No such file"):
        manifest.build(str(tmp_path / "none"))


A, B, C = ({"path": "f.py", "mode": 0o644, "sha256": letter * 64, "size": 1} for letter in "abc")
A_RUNS = {**A, "mode": 0o755}
KEPT = {"path": "kept.py", "mode": 0o644, "sha256": "d" * 64, "size": 1}


@pytest.mark.parametrize(
    ("base", "local", "remote", "state", "change"),
    [
        (A, A, A, "in_sync", None),
        (A, B, A, "local_ahead", ("modified", "local")),
        (None, A, None, "local_ahead", ("added", "local")),
        (A, None, A, "local_ahead", ("deleted", "local")),
        (A, A_RUNS, A, "local_ahead", ("mode", "local")),
        (A, A, B, "remote_edited", ("modified", "remote")),
        (A, A, None, "remote_edited", ("deleted", "remote")),
        (A, A, A_RUNS, "remote_edited", ("mode", "remote")),
        (A, B, C, "both", ("modified", "both")),
        (A, None, B, "both", ("deleted", "both")),
        (A, B, None, "both", ("deleted", "both")),
        (None, A, B, "both", ("added", "both")),
        (A, B, B, "in_sync", None),
        (A, None, None, "in_sync", None),
        (None, A, A, "in_sync", None),
    ],
)
def test_three_ways_tell_who_changed_a_file(base: Any, local: Any, remote: Any, state: str, change: Any) -> None:
    found = manifest.compare(*([KEPT, one] if one else [KEPT] for one in (base, local, remote)))
    assert found["state"] == state
    assert found["files"] == ([{"path": "f.py", "change": change[0], "side": change[1]}] if change else [])


def test_without_a_base_a_difference_is_unknown_and_nothing_there_is_absent() -> None:
    assert manifest.compare(None, [A, KEPT], [B, KEPT])["state"] == "unknown"
    assert manifest.compare(None, [A, KEPT], [KEPT])["state"] == "unknown"
    assert manifest.compare(None, [A], [A])["state"] == "in_sync"
    assert manifest.compare(None, [A], None)["state"] == "absent"
    assert manifest.compare(None, [A], [])["state"] == "absent"
    assert manifest.compare([A], [A], [])["state"] == "remote_edited"


def test_one_change_on_each_side_is_both_and_extras_change_nothing() -> None:
    other = {**KEPT, "sha256": "e" * 64}
    assert manifest.compare([A, KEPT], [B, KEPT], [A, other])["state"] == "both"
    found = manifest.compare([A], [A], [A], extras=["notes.txt"])
    assert found["state"] == "in_sync"
    assert found["files"] == [{"path": "notes.txt", "change": "extra", "side": "remote"}]
    assert found["local"] == found["remote"] == found["base"] == manifest.digest([A])


FOLDERS = st.dictionaries(st.sampled_from("abc"), st.sampled_from([(0o644, "1"), (0o644, "2"), (0o755, "1")]))


def entries(folder: dict[str, tuple[int, str]]) -> list[dict[str, Any]]:
    return [{"path": path, "mode": mode, "sha256": letter * 64, "size": 1} for path, (mode, letter) in folder.items()]


@given(st.one_of(st.none(), FOLDERS), FOLDERS, FOLDERS)
def test_any_three_folders_agree_with_the_rules(
    base: dict[str, Any] | None, local: dict[str, Any], remote: dict[str, Any]
) -> None:
    found = manifest.compare(None if base is None else entries(base), entries(local), entries(remote))
    differing = {path for path in {*local, *remote} if local.get(path) != remote.get(path)}
    assert {one["path"] for one in found["files"]} == differing
    assert (found["state"] == "in_sync") == (not differing)
    assert all(one["side"] == "remote" for one in found["files"]) or found["state"] != "remote_edited"
    if found["state"] == "local_ahead":
        assert base is not None and all(remote.get(path) == base.get(path) for path in differing)
