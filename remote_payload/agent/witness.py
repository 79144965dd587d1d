"""Watching one training run while orch, or a command of the user's, is at work: samples before, during and after."""

import threading
import time
from typing import Any, Dict, List, Optional

from remote_payload.agent import identity as identities
from remote_payload.agent import sample as samples
from remote_payload.agent.errors import AgentError

LEAST_INTERVAL_S = 0.5
KEPT_PACES = 60
"""lines of the log whose pace goes into a sample"""
GONE = ("absent", "zombie")

Sample = Dict[str, Any]


def witness_answer(args: Dict[str, Any], talk: Any) -> Dict[str, Any]:
    """Tell {"sample": ...} at once and every `every` seconds, until the controller says anything; answer with the last.

    `args` is {run: {process: rule, log, progress}, every: seconds, gpus: bool}. A sample is Sampler.take's with
    what `Witness.look` adds.
    """
    stop = threading.Event()
    threading.Thread(target=_wait_for_word, args=(talk, stop), daemon=True).start()
    witness = Witness(args["run"], talk if args.get("gpus") else None)
    talk.progress({"sample": witness.look()})
    while not stop.wait(max(LEAST_INTERVAL_S, float(args["every"]))):
        talk.progress({"sample": witness.look()})
    return {"sample": witness.look()}


def _wait_for_word(talk: Any, stop: threading.Event) -> None:
    talk.message()
    stop.set()


class Witness:
    """Looks at one training run again and again: at the process that it found first, for as long as that lives."""

    def __init__(self, run: Dict[str, Any], talk: Any, process: Optional[Dict[str, Any]] = None) -> None:
        """`run` is {process: rule|None, log, progress}; `process` what training.find has just said, where it was asked.

        `talk` spawns the driver's tool; None leaves the GPUs out.
        """
        self._run = run
        self._talk = talk
        self._sampler: Optional[samples.Sampler] = None
        self._follow(process if process is not None else self._find())

    def look(self) -> Sample:
        """A sample with progress, `pid`, `started_at`, and `gpus` ([{index, memory_used, clients, strangers}] or None).

        `paces` are [step, rate] of the last lines of the log, oldest first; `log` is its {inode, size}; `ending` says
        of a training that is gone how it ended (last_words.ending).
        """
        found = self.process_sample()
        log = self._run.get("log")
        if log is not None:
            found = self._with_log(found, log)
        if self._talk is not None:
            found.update(gpu_part(_gpus(self._talk), found["identity"], self._ranks))
        return self.with_ending(found)

    def process_sample(self) -> Sample:
        """The part that reads /proc alone, and the `rule` that it went by. Where the process is gone, whatever the rule
        names now is looked at."""
        found = self._take()
        if found["state"] == "absent" and self._run.get("process") is not None:
            gone = found["reason"]
            self._follow(self._find())
            found = self._take()
            if self._sampler is None and gone and found["state"] == "absent":
                found["reason"] = gone
        return {**found, "rule": self._run.get("process")}

    def with_ending(self, found: Sample) -> Sample:
        """The sample with `ending` where the training is gone."""
        if found["state"] not in GONE:
            return {**found, "ending": None}
        from remote_payload.agent import last_words

        zombie = found["pid"] if found["state"] == "zombie" else None
        return {**found, "ending": last_words.ending(self._run.get("log"), zombie)}

    def _follow(self, process: Optional[Dict[str, Any]]) -> None:
        self._process = process or {}
        identity = self._process.get("identity")
        self._ranks: List[int] = list(self._process.get("ranks") or ())
        self._sampler = samples.Sampler(identity, self._ranks) if identity else None

    def _take(self) -> Sample:
        named = {"pid": self._process.get("pid"), "started_at": self._process.get("started_at")}
        if self._sampler is not None:
            found = {**self._sampler.take(), **named}
            return {**found, "identity": None, "pid": None} if found["state"] == "absent" else found
        known = {"state": self._process.get("state"), "reason": self._process.get("reason") or ""}
        return {**samples.of_host(), **named, **known}

    def _find(self) -> Optional[Dict[str, Any]]:
        rule = self._run.get("process")
        if rule is None:
            return None
        from remote_payload.agent import training

        try:
            return training.find(rule)
        except AgentError as error:
            return {"state": None, "reason": error.message}

    def _with_log(self, found: Sample, log: str) -> Sample:
        from remote_payload.agent import progress

        started = identities.started_at(found["identity"]["start_ticks"]) if found["identity"] else None
        try:
            told = progress.read(log, self._run.get("progress"), time.time(), started)
        except AgentError as error:
            return {**samples.with_progress(found, None), "log_error": error.message}
        return with_log(found, told)


def with_log(found: Sample, told: Optional[Dict[str, Any]]) -> Sample:
    """The sample with what `progress.read` told."""
    extra = {name: (told or {}).get(name) for name in ("interval_s", "log")}
    return {**samples.with_progress(found, told), **extra, "paces": ((told or {}).get("paces") or [])[-KEPT_PACES:]}


def gpu_part(told: Dict[str, Any], identity: Optional[Dict[str, Any]], ranks: List[int]) -> Dict[str, Any]:
    """{gpus, gpu_note} of a sample from what gpus.read told; `strangers` are clients outside the training's tree."""
    clients = {pid for gpu in told["gpus"] for pid in gpu["clients"]}
    family = set(ranks)
    if clients and identity:
        from remote_payload.agent.processes import Processes

        pid = int(identity["pid"])
        family |= {pid, *Processes().descendants(pid)}
    rows = [
        {
            "index": gpu["index"],
            "memory_used": gpu["memory_used"],
            "clients": sorted(gpu["clients"]),
            "strangers": sorted(set(gpu["clients"]) - family),
        }
        for gpu in told["gpus"]
    ]
    return {"gpus": rows or None, "gpu_note": told.get("note")}


def _gpus(talk: Any) -> Dict[str, Any]:
    from remote_payload.agent import gpus

    return gpus.read(talk)
