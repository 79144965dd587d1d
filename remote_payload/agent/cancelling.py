"""Ending a run because somebody said so."""

from typing import Any, Dict

from remote_payload.agent import launcher, runfolder, runs
from remote_payload.agent.errors import AgentError


def cancel_answer(args: Dict[str, Any], talk: Any) -> Dict[str, Any]:
    """args {"workdir", "id", "grace": seconds}. End a queued or running run, or what a lost one left running.

    Answers {"run": row, "before": its state until now, "left": [pids that could not be ended]}. A run that has ended
    stays what it is. Raises AgentError for a run of another machine that shares the folder.
    """
    folder = runfolder.folder_of(args["workdir"], args["id"])
    row = runs.row_of(folder)
    if row is None:
        raise AgentError("run %s has been removed" % args["id"], kind="nothing")
    before, left = row["state"], []
    if before in ("queued", "running") or (before == "lost" and not row["ended_at"]):
        left = launcher.stop(folder, str(row["id"]), float(args["grace"]))
        row = runs.row_of(folder) or row
    return {"run": row, "before": before, "left": left}
