"""The one seam through which runs start: a detached process that outlives the connection. Nothing else knows how."""

import json
import os
import select
import subprocess
import sys
import time
from typing import Any, Dict

from remote_payload.agent import incarnation
from remote_payload.agent.errors import AgentError

READY = b"ready\n"
PATIENCE = 20.0
"""seconds until a supervisor must have said that it is ready"""
SUPERVISOR = "supervisor.py"


def supervisor_source(bundle: str) -> str:
    """The text of a run folder's supervisor.py: the whole agent and the call that supervises the folder."""
    return (
        "import sys\n"
        "exec(compile(%r, 'orch-agent', 'exec'), {'__name__': 'agent'})\n"
        "from remote_payload.agent import supervise\n"
        "supervise.main(sys.argv[1])\n" % bundle
    )


def start(folder: str, run_id: str, secrets: Dict[str, str]) -> None:
    """Start the supervisor of a run folder and return once it has said that it is on its own and a second look has
    found it alive. `secrets` go over its stdin and nowhere else. Raises AgentError."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SSH_")}
    environment[incarnation.RUN_ID] = run_id
    process = subprocess.Popen(
        [sys.executable or "python3", "-I", "-B", os.path.join(folder, SUPERVISOR), folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env=environment,
        start_new_session=True,
    )
    said = b""
    try:
        _hand_over(process, secrets)
        said = _listen(process)
    finally:
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe:
                pipe.close()
        if not said.endswith(READY):
            process.kill()
        process.wait()  # the supervisor is this process's child, and lives on
    if not said.endswith(READY):
        lines = said.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"]
        raise AgentError("its supervisor ended at once: %s" % lines[-1][-500:])


def _hand_over(process: "subprocess.Popen[bytes]", secrets: Dict[str, str]) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(secrets).encode("utf-8") + b"\n")
        process.stdin.close()
    except BrokenPipeError:
        pass  # it ended at once; what it said tells why


def _listen(process: "subprocess.Popen[Any]") -> bytes:
    """What the supervisor says until it is ready, has closed its pipes, or time is up."""
    assert process.stdout is not None and process.stderr is not None
    pipes = [process.stdout.fileno(), process.stderr.fileno()]
    said = b""
    deadline = time.monotonic() + PATIENCE
    while pipes and not said.endswith(READY):
        readable, _, _ = select.select(pipes, [], [], max(0.0, deadline - time.monotonic()))
        if not readable:
            return said + b" (no answer in %d s)" % PATIENCE
        for pipe in readable:
            data = os.read(pipe, 4096)
            if not data:
                pipes.remove(pipe)
            said += data
    return said
