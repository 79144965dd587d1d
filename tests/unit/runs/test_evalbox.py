"""What an evaluation host has and lacks for a job, seen in one look that changes nothing."""

from __future__ import annotations

import http.server
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from evalhost import EvalHost, Line, write_files

from remote_payload.agent import datadigest, evalbox, manifest


class Reference(http.server.BaseHTTPRequestHandler):
    """Serves /v1/models and no /health, as some servers do."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/v1/models" else 404)
        self.end_headers()

    def log_message(self, *args: Any) -> None: ...


@pytest.fixture
def server_url() -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), Reference) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def everything(root: Path) -> dict[str, int]:
    return {str(path): path.lstat().st_mtime_ns for path in root.rglob("*")}


def test_one_look_tells_what_is_there_and_changes_nothing(eval_host: EvalHost, server_url: str) -> None:
    write_files(eval_host.remote, {"cached_hidden_states/a": "12345", "step_2000/checkpoint.pt": "x", "notes.md": "n"})
    result = {"acceptance_length": {"walk_macro": 2.5}}
    write_files(eval_host.remote, {"eval_results.json": json.dumps(result), "checkpoints/step_4/model.pt": "xx"})
    eval_host.end(eval_host.launch(["{python}", "eval.py", "{result}"])["id"])
    before = everything(eval_host.root)
    found = evalbox.facts(
        {
            "workdir": str(eval_host.workdir),
            "remote": str(eval_host.remote),
            "entries": manifest.build(str(eval_host.remote)),
            "headline": "acceptance_length.walk_macro",
            "data": {"cache": "cached_hidden_states", "baseline": "~/none"},
            "server": server_url,
            "python": "/bin/sh",
        },
        Line(),
    )
    assert everything(eval_host.root) == before
    assert json.loads(json.dumps(found)) == found
    kinds = {row["path"]: (row["kind"], row["bytes"], row["headline"]) for row in found["remote_folder"]}
    assert kinds == {
        "cached_hidden_states": ("cache", 5, None),
        "step_2000": ("checkpoint", 1, None),
        "checkpoints/step_4": ("checkpoint", 2, None),
        "eval_results.json": ("result", len(json.dumps(result)), 2.5),
    }
    assert found["data"]["cache"] == {"path": f"{eval_host.remote}/cached_hidden_states", "exists": True}
    assert found["data"]["baseline"] == {"path": os.path.expanduser("~/none"), "exists": False}
    assert [row["identity"] for row in found["staged"]] == ["abc"]
    assert [row["state"] for row in found["runs"]] == ["succeeded"]
    assert found["server"]["ok"] and found["disk"]["free"] > 0 and found["memory"]["available"] > 0


def test_a_fresh_host_is_described_before_anything_exists(tmp_path: Path) -> None:
    found = evalbox.facts({"workdir": str(tmp_path / "a/b"), "remote": str(tmp_path / "eval")}, Line())
    assert (found["staged"], found["runs"], found["harness"]["exists"]) == ([], [], False)
    assert found["disk"]["path"] == str(tmp_path) and not list(tmp_path.iterdir())


@pytest.mark.parametrize("url", ["http://127.0.0.1:{closed}", "not a url", "http://no-such-host.invalid"])
def test_a_server_that_does_not_answer_says_why(url: str) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        found = evalbox.server(url.format(closed=listener.getsockname()[1]))
    assert found["ok"] is False and found["detail"]


def test_the_interpreter_is_asked_for_its_version(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho 3.9.9\n")
    fake.chmod(0o755)
    assert evalbox.python(str(fake), True, Line())["version"] == "3.9.9"
    fake.write_text("#!/bin/sh\necho broken >&2; exit 3\n")
    found = evalbox.python(str(fake), True, Line())
    assert not found["ok"] and "exit 3: broken" in found["detail"]
    assert evalbox.python("/no/such", False, Line())["ok"] is False


def test_a_data_digest_follows_content_and_name_and_is_remembered(tmp_path: Path) -> None:
    data = write_files(tmp_path / "data", {"a": "1", "sub/b": "2"})
    (data / "link").symlink_to("a")
    (data / "sub" / "circle").symlink_to(data)
    for path in (data / "a", data / "sub/b"):
        os.utime(path, (1_000_000, 1_000_000))
    memory = tmp_path / "state" / "digests.json"
    first = datadigest.digest({"d": str(data)}, str(memory))["d"]
    assert (first["files"], first["bytes"]) == (3, 3)
    (data / "a").write_text("X")
    os.utime(data / "a", (1_000_000, 1_000_000))
    assert datadigest.digest({"d": str(data)}, str(memory))["d"] == first, "size, mtime and inode are what is asked"
    memory.unlink()
    assert datadigest.digest({"d": str(data)}, str(memory))["d"]["digest"] != first["digest"]


def test_a_file_written_a_moment_ago_is_not_remembered(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    memory = tmp_path / "digests.json"
    datadigest.digest({"d": str(tmp_path / "a")}, str(memory))
    assert not memory.exists()


def test_data_that_is_missing_or_no_file_is_an_error_of_its_own(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "ok").write_text("")
    paths = {name: str(tmp_path / name) for name in ("none", "pipe", "ok")}
    found = datadigest.digest(paths, str(tmp_path / "memory"))
    assert "No such file" in found["none"]["error"] and "no file" in found["pipe"]["error"]
    assert found["ok"]["files"] == 1
