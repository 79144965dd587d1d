"""One question, one answer, then gone: what runs on a host for as long as the controller listens.

The controller starts `python3 -I -S -B -c STAGE` and sends over stdin: the length of a bundle, the bundle (all agent
modules), a request frame, and from then on heartbeats. This side answers with progress, data and one last J frame, and
lives on that heartbeat: silence or EOF on stdin ends it, with every process that it started.
"""

import os
import sys
import time
from typing import Any, BinaryIO, Dict

from remote_payload.agent import wire
from remote_payload.agent.errors import AgentError
from remote_payload.agent.talk import Talk

# question -> module, function, whether it writes to the host
QUESTIONS = {
    "observe": ("questions_observe", "observe_answer", False),
    "witness": ("witness", "witness_answer", False),
    "scan": ("questions_checkpoints", "scan_answer", False),
    "send": ("sending", "send_answer", False),
    "harness_read": ("harness", "harness_read_answer", False),
    "harness_fetch": ("harness", "harness_fetch_answer", False),
    "preflight": ("preflight", "preflight_answer", True),
    "harness_sync": ("harness", "harness_sync_answer", True),
    "harness_push": ("harness", "harness_push_answer", True),
    "receive": ("staging", "receive_answer", True),
    "staged": ("retention", "staged_answer", False),
    "clean": ("retention", "clean_answer", True),
    "reach": ("reach", "reach_answer", False),
    "hold": ("reach", "hold_answer", False),
    "launch": ("runs", "launch_answer", True),
    "runs": ("runs", "runs_answer", False),
    "follow": ("runs", "follow_answer", False),
    "cancel": ("cancelling", "cancel_answer", True),
    "collect": ("runs", "collect_answer", False),
}

ENDLESS = ("send", "hold")
"""questions that last as long as a shipment; all others are looks"""
LOOK_CPU_S = 120
"""CPU seconds of a look; its time of the clock is the controller's to end: it lives on that heartbeat"""


def serve(stdin: BinaryIO, bundle: str) -> None:
    """Read the request, answer it, exit. Never returns: 0 after an answer (errors are answers too)."""
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # stray prints can't break frames
    out.write(wire.MARK)
    frame = wire.read_frame(stdin.read)
    if frame is None or frame[0] != wire.JSON:
        os._exit(70)
    request = wire.decode_json(frame[1])
    talk = Talk(stdin, out, beat=float(request["beat"]), dead=float(request["dead"]), bundle=bundle)
    talk.start()
    began = time.monotonic()
    message = _answer(request, talk)
    message["seconds"] = round(time.monotonic() - began, 4)
    talk.finish(message)


def _answer(request: Dict[str, Any], talk: Talk) -> Dict[str, Any]:
    try:
        credentials = request["args"].pop("credentials", None)
        if credentials is not None:
            from remote_payload.agent.credentials import keep

            keep(credentials["key"], credentials["known_hosts"])  # before files can't grow any more, see there
        if request["role"] == "train":
            _stay_harmless(endless=request["question"] in ENDLESS)
        elif request.get("beside"):
            from remote_payload.agent.quiet import be_quiet

            be_quiet(first_to_go=False)  # a supervisor inherits it, which has to tell how its evaluation ended
        module, function, writes = QUESTIONS[request["question"]]
        if writes and request["role"] == "train":
            raise AgentError("%s writes, and this is a training box" % request["question"], kind="refused")
        loaded = __import__("remote_payload.agent." + module, fromlist=[function])
        return {"answer": getattr(loaded, function)(request["args"], talk)}
    except AgentError as error:
        return {"error": {"kind": error.kind, "message": error.message, "hint": error.hint}}
    except Exception:
        import traceback

        # a bug: its traceback crosses the wire and lands in the controller's log file
        return {"bug": traceback.format_exc()[-8000:]}


def _stay_harmless(endless: bool) -> None:
    """What a training box is owed: lowest priority, no file grows (the kernel holds that), no core dump, bounded memory
    (what is its own, and what it maps), and CPU time unless it is `endless`. Children inherit all of it."""
    import resource

    from remote_payload.agent.quiet import be_quiet

    be_quiet()
    limits = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_DATA, 1 << 30),
        (resource.RLIMIT_AS, 8 << 30),
    ]
    for limit, value in limits if endless else [*limits, (resource.RLIMIT_CPU, LOOK_CPU_S)]:
        try:
            resource.setrlimit(limit, (value, value))
        except (ValueError, OSError) as error:
            print("limit %d not set: %s" % (limit, error), file=sys.stderr)
