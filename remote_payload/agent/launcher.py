"""The one seam through which runs are started, watched and stopped. Nothing else knows how.

Here a run is a detached supervisor (supervise.py) that outlives the connection: `start` returns once it has said that
it is on its own, `look` tells from its files and its identity where it stands, `stop` ends it with all that it started.
"""

import json
import os
import select
import subprocess
import sys
import time
from typing import Any, Dict, List, Tuple

from remote_payload.agent import belongings, ending, identity, incarnation, limits, scratch, turn
from remote_payload.agent.errors import AgentError

READY = b"ready\n"
PATIENCE = 20.0
"""seconds until a supervisor must have said that it is ready"""
SUPERVISOR = "supervisor.py"
STARTED, EXIT, CANCEL, LOG, HEARTBEAT = "started.json", "exit.json", "cancel.json", "log", "heartbeat"
FRESH = 60.0
"""seconds for which the heartbeat of another machine on a shared disk is believed"""
SLACK = 15.0
"""seconds that a supervisor may take to end its run, beyond the grace"""


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
    environment.update(belongings.mark(run_id, folder))
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


def look(folder: str, run_id: str) -> Tuple[str, str]:
    """(state, reason) of a run that has no exit.json: queued, running or lost. Nothing is written."""
    started = _started(folder)
    if not started:
        return _before_its_start(folder, run_id)
    seen = incarnation.look(started, run_id)
    begun = bool(started.get("child")) or os.path.exists(os.path.join(folder, LOG))
    if seen == "alive" and (begun or not started.get("waiting")):
        return "running", ""
    if seen == "alive":
        ahead = turn.ahead_of(os.path.dirname(os.path.dirname(folder)), run_id)
        return "queued", "waits behind run %s" % ", ".join(ahead) if ahead else ""
    if seen == "elsewhere" and scratch.age(os.path.join(folder, HEARTBEAT)) < FRESH:
        return ("running" if begun else "queued"), "on %s, which shares this folder" % started.get("node")
    return "lost", _why_lost(folder, run_id, started, begun)


def _before_its_start(folder: str, run_id: str) -> Tuple[str, str]:
    """Of a run whose supervisor has not written a file yet."""
    writer = scratch.read_json(os.path.join(folder, scratch.WRITER)) or {}
    seen = incarnation.look(writer) if writer else "gone"
    if seen == "alive" or (seen == "elsewhere" and not scratch.abandoned(folder)):
        return "queued", ""
    if belongings.of_run(run_id, folder, {}):
        return "queued", ""  # who launched it is gone, its supervisor is on its way
    return "lost", "its launch was cut off before the supervisor started"


def _why_lost(folder: str, run_id: str, started: Dict[str, Any], begun: bool) -> str:
    reason = incarnation.why_gone(started) + ("" if begun else " while it waited for its turn")
    if incarnation.same_boot(started) and limits.oom_kills() > started.get("oom_kills", 0):
        reason += "; the kernel has killed processes for want of memory since it started"
    same = started.get("incarnation") == identity.incarnation()  # else nothing of it can be left
    left = belongings.pids(belongings.of_run(run_id, folder, started)) if same else []
    if left:
        reason += "; still running, unwatched: processes %s (orch cancel %s ends them)" % (left, run_id)
    return reason


def stop(folder: str, run_id: str, grace: float) -> List[int]:
    """End a run and all that it started: TERM, KILL after `grace` seconds, until nothing of it is left.

    Its supervisor does it and says so in exit.json. One that is gone or does not react is stood in for. Answers the
    pids that could not be ended. Raises AgentError for a run of another machine.
    """
    started = _started(folder)
    seen = incarnation.look(started, run_id) if started else "gone"
    if seen == "elsewhere":
        raise AgentError(
            "run %s is watched on %s, which shares this folder" % (run_id, started.get("node")),
            "cancel it through that host",
            kind="refused",
        )
    state, reason = "cancelled", "cancelled by orch cancel"
    if seen == "alive":
        _ask_to_end(folder, run_id, started, grace)
        grace = 0.0
    elif started:
        state, reason = "lost", incarnation.why_gone(started)
    left = belongings.end(lambda: belongings.of_run(run_id, folder, _started(folder)), grace)
    ending.write_off(folder, state, reason)
    return left


def warning() -> str:
    """What may end a run here although nobody asked for it; "" for nothing."""
    from remote_payload.agent import logout

    return logout.kill_rule()


def _ask_to_end(folder: str, run_id: str, started: Dict[str, Any], grace: float) -> None:
    """Return once the supervisor has ended, or has had its time."""
    from remote_payload.agent import supervise

    try:
        scratch.write_json(os.path.join(folder, CANCEL), {"schema": 1, "grace": grace})
    except OSError:
        pass  # a full disk: it uses its own grace
    process = identity.read_stat(started["pid"])
    deadline = time.monotonic() + grace + SLACK
    if process is not None and process.start_ticks == started["start_ticks"]:
        belongings.tell(process, supervise.CANCEL)
    while time.monotonic() < deadline and incarnation.look(started, run_id) == "alive":
        time.sleep(0.05)


def _started(folder: str) -> Dict[str, Any]:
    return scratch.read_json(os.path.join(folder, STARTED)) or {}


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
