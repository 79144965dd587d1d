"""The last look before an evaluation starts: shipping may have taken hours since the plan was made, and so may a queue.

What the plan saw then is seen again here, on the host itself: memory, disk, and whether a training lives here now.
"""

from typing import Any, Dict, List, Optional

from remote_payload.agent import hostinfo
from remote_payload.agent.errors import AgentError

ROOM = 8 << 20
"""bytes of disk for a run folder: the harness's copy, the log, the result"""
HINT = "name another host with --host, or allow it with --allow-on-training-host"
LIVING = ("running", "stopped", "ambiguous", "hidden")
"""states of a training process that lives, or may"""


def look_again(workdir: str, spec: Dict[str, Any]) -> Dict[str, Any]:
    """The spec with `beside` as it is now. Raises AgentError (refused) where the evaluation may not start.

    spec["trains"] is {"allowed": whether an evaluation beside a training was asked for by name, "runs": [{"name",
    "process": rule or None, "log", "progress"}]} of the training runs that belong to this host; without it, as
    earlier versions sent none, the plan's word stands.
    """
    trains = spec.get("trains")
    if trains is not None:
        spec = dict(spec, beside=_beside(trains["runs"], spec.get("beside")))
        if spec["beside"] and not trains["allowed"]:
            raise AgentError(_who(spec["beside"]) + "; no evaluation beside it", HINT, kind="refused")
    _see_room(workdir, spec)
    return spec


def _beside(runs: List[Dict[str, Any]], planned: Optional[Dict[str, Any]]) -> Optional[Dict[str, Any]]:
    """Those that live here now, in the form that beside.Beside reads; None where there is none."""
    from remote_payload.agent import training
    from remote_payload.agent.processes import Processes

    trainings: List[Dict[str, Any]] = []
    unseen: List[str] = []
    processes = Processes() if any(run["process"] for run in runs) else None
    for run in runs:
        try:
            found = training.find(run["process"], processes) if run["process"] else None
        except AgentError:
            found = None
        if found is None or (found["state"] in LIVING and not found["identity"]):
            unseen.append(run["name"])
        elif found["state"] in LIVING:
            told = {key: run[key] for key in ("name", "log", "progress")}
            trainings.append(dict(told, identity=found["identity"], ranks=found["ranks"]))
    now = {"trainings": trainings, "unseen": unseen}
    return dict(planned or {}, **now) if trainings or unseen else None


def _who(beside: Dict[str, Any]) -> str:
    living = ["%s (process %d)" % (one["name"], one["identity"]["pid"]) for one in beside["trainings"]]
    if living:
        return "a training runs here now: %s" % ", ".join(living)
    return "whether %s runs here now can't be seen" % ", ".join(beside["unseen"])


def _see_room(workdir: str, spec: Dict[str, Any]) -> None:
    memory, disk = hostinfo.memory(), hostinfo.disk(workdir)
    reserve = hostinfo.reserve(spec.get("beside"))
    needed = ((spec.get("limits") or {}).get("memory") or 0) + reserve
    if memory["available"] < needed:
        told = "%d bytes of memory are available, %d needed" % (memory["available"], needed)
        told += " with what is kept for the training" if reserve else ""
        raise AgentError(told, "wait, or lower limits.memory", kind="refused")
    if disk["free"] < ROOM:
        raise AgentError("%s: %d bytes free, a run needs %d" % (workdir, disk["free"], ROOM), kind="refused")
