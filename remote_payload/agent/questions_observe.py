"""One question for a box: what is this host, what runs on it, how far is it, and what did it save."""

import threading
import time
from typing import Any, Callable, Dict, List, Optional

from remote_payload.agent.errors import AgentError

PATIENCE_S = 60.0
"""for each part of the answer; a file system that hangs costs its own part only"""

Parts = Dict[str, Callable[[], Any]]


def observe_answer(args: Dict[str, Any], talk: Any) -> Dict[str, Any]:
    """{"host": facts, gpus, gpu_note, with `sample` addresses; "runs": {name: {process, progress, source, checkpoints,
    samples}}; "eval"}.

    `args` is {disk_path, runs: [{name, process: rule|None, log, progress, source, checkpoints: {root, layout}|None}],
    gpus: bool, sample: bool, eval: {...}|None}. What was not asked for is None. A part that fails is
    {"error": all that is said of it} in its own place, with kind, message and hint where that was expected to happen,
    and leaves the others alone. Parts that wait for a disk or a
    child process are answered at the same time. `samples` are two of the training process (witness.py): from before
    everything else was looked at, and from after it, with the log and the GPUs.
    """
    from remote_payload.agent import hostinfo

    parts: Parts = {"host": lambda: hostinfo.facts(args["disk_path"])}
    if args.get("sample"):
        parts["addresses"] = hostinfo.addresses
    if args.get("gpus"):
        parts["gpus"] = lambda: _gpus(talk)
    if args.get("eval") is not None:
        parts["eval"] = lambda: _eval_facts(args["eval"], talk)
    if args.get("runs"):
        parts["runs"] = lambda: _runs(args["runs"], bool(args.get("sample")), talk)
    # elsewhere nothing is digested, and that module need not be compiled
    told = together(parts, _digesting) if "eval" in parts else together(parts)
    gpus = told.get("gpus") or {"gpus": [], "note": None}
    host = dict(told["host"], gpus=gpus.get("gpus", []), gpu_note=gpus.get("error") or gpus.get("note"))
    if isinstance(told.get("addresses"), list):
        host["addresses"] = told["addresses"]
    runs = told.get("runs", {})
    if "error" in runs and isinstance(runs["error"], str):  # /proc itself can't be read
        runs = {run["name"]: runs for run in args["runs"]}
    elif args.get("gpus") and args.get("sample"):
        _put_gpus_into_samples(runs, gpus)
    return {"host": host, "runs": runs, "eval": told.get("eval")}


def _put_gpus_into_samples(runs: Dict[str, Any], gpus: Dict[str, Any]) -> None:
    from remote_payload.agent import witness

    told = {"gpus": gpus.get("gpus", []), "note": gpus.get("error") or gpus.get("note")}
    for answer in runs.values():
        if answer.get("samples"):
            last = answer["samples"][-1]
            last.update(witness.gpu_part(told, last["identity"], (answer["process"] or {}).get("ranks") or []))


def _digesting() -> float:
    """When data was last seen to move: reading 100 GB for their digest takes long, and is no hanging file system."""
    from remote_payload.agent import datadigest

    return datadigest.moved_at


def together(parts: Parts, moved: Callable[[], float] = lambda: 0.0) -> Dict[str, Any]:
    """Every part's value, computed at the same time, or {"error": message} in its place.

    Patience ends PATIENCE_S after the start, or after the time (monotonic) that `moved` returns.
    """
    values: Dict[str, Any] = {
        name: {"error": "no answer within %.0f s: does a file system hang?" % PATIENCE_S} for name in parts
    }
    answers: Dict[str, Any] = {}
    threads = [
        threading.Thread(target=_answer_into, args=(answers, name, part), daemon=True) for name, part in parts.items()
    ]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    for thread in threads:
        while thread.is_alive():
            left = max(began, moved()) + PATIENCE_S - time.monotonic()
            if left <= 0:
                break
            thread.join(left)
    values.update(dict(answers))  # a copy: a late thread may still add to it
    return values


def _answer_into(answers: Dict[str, Any], name: str, part: Callable[[], Any]) -> None:
    try:
        answers[name] = part()
    except AgentError as error:
        said = ": ".join(filter(None, (error.message, error.hint)))
        answers[name] = {"error": said, "kind": error.kind, "message": error.message, "hint": error.hint}
    except Exception as error:  # one part's bug or a host's oddity must not hide the rest of the answer
        answers[name] = {"error": "%s: %s" % (type(error).__name__, error)}


def _runs(runs: List[Dict[str, Any]], sample: bool, talk: Any) -> Dict[str, Any]:
    processes = None
    if any(run.get("process") for run in runs):
        from remote_payload.agent.processes import Processes

        processes = Processes()
    answers: Dict[str, Dict[str, Any]] = {}
    witnesses: Dict[str, Any] = {}
    parts: Parts = {}
    for run in runs:
        process = _process(run.get("process"), processes)
        answers[run["name"]] = {"process": process, **dict.fromkeys(("progress", "source", "checkpoints", "samples"))}
        if sample and process is not None:
            witnesses[run["name"]] = _witness(run, process)
        for part, ask in _parts_of(run, process, talk).items():
            parts[run["name"] + "\0" + part] = ask
    _avoid([answer["process"] for answer in answers.values()])
    before = {name: witness.process_sample() for name, witness in witnesses.items()}
    for key, value in together(parts).items():
        name, part = key.split("\0")
        answers[name][part] = value
    for name, witness in witnesses.items():
        answers[name]["samples"] = [before[name], _last_sample(witness, answers[name]["progress"])]
    return answers


def _avoid(processes: List[Optional[Dict[str, Any]]]) -> None:
    """Where trainings are pinned to cores, look at them from others."""
    from remote_payload.agent import quiet

    pids = [pid for process in processes for pid in (process or {}).get("ranks") or ()]
    quiet.avoid(quiet.cores_of(pids))


def _witness(run: Dict[str, Any], process: Dict[str, Any]) -> Any:
    from remote_payload.agent import witness

    if "error" in process:
        process = {"state": None, "reason": process["error"]}
    return witness.Witness(run, None, process)


def _last_sample(witness: Any, progress: Optional[Dict[str, Any]]) -> Dict[str, Any]:
    """With what the log, which was read once, for `progress`, told in the meantime."""
    from remote_payload.agent.witness import with_log

    found = with_log(witness.process_sample(), None if progress and "error" in progress else progress)
    whole: Dict[str, Any] = witness.with_ending(found)
    return whole


def _process(rule: Optional[Dict[str, Any]], processes: Any) -> Optional[Dict[str, Any]]:
    if rule is None:
        return None
    from remote_payload.agent import training

    found: Dict[str, Any] = {}
    _answer_into(found, "process", lambda: training.find(rule, processes))
    process: Dict[str, Any] = found["process"]
    return process


def _parts_of(run: Dict[str, Any], process: Optional[Dict[str, Any]], talk: Any) -> Parts:
    """What else is asked about a run, each as a function of no arguments."""
    log, pattern, source, saved = (run.get(key) for key in ("log", "progress", "source", "checkpoints"))
    identity = (process or {}).get("identity")
    parts: Parts = {}
    if log is not None:
        parts["progress"] = lambda: _progress(log, pattern, identity)
    if source is not None:
        parts["source"] = lambda: _source(source, talk)
    if saved is not None:
        from remote_payload.agent.questions_checkpoints import checkpoints

        parts["checkpoints"] = lambda: checkpoints(saved, process)
    return parts


def _progress(log: str, pattern: Optional[str], identity: Optional[Dict[str, Any]]) -> Optional[Dict[str, Any]]:
    from remote_payload.agent import identity as identities
    from remote_payload.agent import progress

    started = identities.started_at(identity["start_ticks"]) if identity else None
    return progress.read(log, pattern, time.time(), started)


def _source(folder: str, talk: Any) -> Dict[str, Any]:
    from remote_payload.agent import source

    return source.git_state(folder, talk)


def _gpus(talk: Any) -> Dict[str, Any]:
    from remote_payload.agent import gpus

    return gpus.read(talk)


def _eval_facts(asked: Dict[str, Any], talk: Any) -> Any:
    from remote_payload.agent import evalbox

    try:
        return evalbox.facts(asked, talk)
    except AgentError as error:
        return {"error": error.message, "hint": error.hint, "kind": error.kind}
