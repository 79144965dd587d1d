"""The training process that a rule names: which one it is, how it stands, and who belongs to it.

Nothing is guessed: several unrelated processes are `ambiguous`, and what /proc hides is `hidden`. Only /proc is read.
"""

import os
from typing import Any, Dict, List, Optional, Set, Tuple

from remote_payload.agent import command_line, identity
from remote_payload.agent.errors import AgentError
from remote_payload.agent.processes import (
    JOB_VARIABLES,
    OWN_RUN_VARIABLE,
    RANK_VARIABLES,
    Processes,
    uid_of,
    user_name,
)

LISTED = 20
"""processes that are listed at most in a reason or as matches"""
RECYCLED_AFTER_S = 60.0
"""a process that started this long after its pidfile was last written may be another one with the same number"""


def find(rule: Dict[str, Any], processes: Optional[Processes] = None) -> Dict[str, Any]:
    """The training process by `{"match": text}`, `{"pid": n}` or `{"pidfile": path}`.

    Returns {state, pid, started_at, user, command, identity, ranks, reason, matches}. `state` is running, stopped,
    zombie, absent, ambiguous or hidden; the last three have no pid, and `matches` is filled for ambiguous only, with
    {pid, command, user, started_at} each. `match` is a piece of the command line (command_line.py says where it
    counts). Several matches are one training when they form one tree, share a launcher (torchrun, mpirun) or the same
    rendezvous (MASTER_ADDR, MASTER_PORT, WORLD_SIZE); its leader is the topmost of them, else the lowest rank.
    `ranks` are the processes that do the work, the leader itself where no others are seen.

    Raises AgentError(kind="config") for a rule without any of the three, or a pidfile that can't be read.
    """
    processes = processes or Processes()
    if rule.get("pid") is not None:
        return _of_pid(processes, int(rule["pid"]))
    if rule.get("pidfile") is not None:
        return _of_pidfile(processes, str(rule["pidfile"]))
    if rule.get("match"):
        return _of_match(processes, str(rule["match"]))
    raise AgentError("the process rule needs match, pid or pidfile", kind="config")


def _of_pid(processes: Processes, pid: int) -> Dict[str, Any]:
    stat = processes.stat(pid)
    if stat and pid in processes.pids:
        return _report(processes, pid, _ranks(processes, pid, []))
    if stat:
        return _nobody("absent", "%d is a thread of another process" % pid)
    if exists(pid):
        return _nobody("hidden", "process %d exists, and /proc hides it from this user" % pid)
    return _nobody("absent", "no process %d" % pid)


def _of_pidfile(processes: Processes, path: str) -> Dict[str, Any]:
    path = os.path.expanduser(path)
    try:
        with open(path, "rb") as file:
            written = os.fstat(file.fileno()).st_mtime
            words = file.read(4096).split()
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            return _nobody("absent", "no pidfile %s" % path)
        raise AgentError("can't read the pidfile %s: %s" % (path, error.strerror), kind="config") from None
    if not words or not words[0].isdigit():
        raise AgentError("the pidfile %s does not begin with a number" % path, kind="config")
    found = _of_pid(processes, int(words[0]))
    if found["identity"]:
        late = identity.started_at(found["identity"]["start_ticks"]) - written
        if late > RECYCLED_AFTER_S:
            reason = "process %d started %.0f s after %s was written: its number was recycled, or the clock was stepped"
            return _ambiguous(processes, [found["pid"]], reason % (found["pid"], late, path))
    return found


def _of_match(processes: Processes, match: str) -> Dict[str, Any]:
    named, mentioned = _candidates(processes, match)
    if named:
        roots = [pid for pid in named if not any(above in named for above in processes.ancestors(pid))]
        leader = _leader(processes, roots)
        if leader is None:
            return _ambiguous(processes, roots, "%d unrelated processes match %r" % (len(roots), match))
        return _report(processes, leader, _ranks(processes, leader, named))
    zombie = _zombie_named(processes, match)
    if zombie is not None:
        return _report(processes, zombie, [zombie])
    hides = processes.hides()
    if hides:
        return _nobody("hidden", "nothing that can be seen matches %r; %s" % (match, hides))
    reason = "no training among %d processes matches %r" % (len(processes.pids), match)
    if mentioned:
        told = ["%s (%d)" % (processes.program(pid), pid) for pid in mentioned[:LISTED]]
        reason += "; passed over, since they only mention it: " + ", ".join(told)
    return _nobody("absent", reason)


def _candidates(processes: Processes, match: str) -> Tuple[List[int], List[int]]:
    """The processes that the text names in the best way found here, and those that merely hold it."""
    text = match.encode("utf-8", "surrogateescape")
    own: Set[int] = set()
    named: Dict[int, List[int]] = {}
    mentioned = []
    for pid in processes.pids:
        raw = processes.raw_command(pid)
        if not raw or text not in raw.replace(b"\0", b" "):
            continue
        own = own or processes.own()
        if pid in own:
            continue
        kind = command_line.how_named(processes.argv(pid), processes.program(pid), match)
        if kind is None or OWN_RUN_VARIABLE in processes.settings(pid):
            mentioned.append(pid)
        else:
            named.setdefault(kind, []).append(pid)
    return (named[min(named)] if named else []), mentioned


def _leader(processes: Processes, roots: List[int]) -> Optional[int]:
    """The one process that stands for these trees, or None where nothing shows that they belong together."""
    if len(roots) == 1:
        return roots[0]
    parents = {stat.parent if stat else 0 for stat in map(processes.stat, roots)}
    parent = parents.pop() if len(parents) == 1 else 0
    launched = parent > 1 and command_line.is_launcher(processes.argv(parent), processes.program(parent))
    jobs = {_job(processes, pid) for pid in roots}
    if not launched and (len(jobs) > 1 or None in jobs):
        return None
    return min(roots, key=lambda pid: (_rank(processes, pid, RANK_VARIABLES) or 0, _started(processes, pid), pid))


def _ranks(processes: Processes, leader: int, named: List[int]) -> List[int]:
    """The processes of the training that compute: one for each rank number, nearest to the top.

    Data loader workers inherit their rank's number and its command line, and so are told from ranks by lying below
    one. Where environments are hidden, a launcher's matching children count.
    """
    below = processes.descendants(leader)
    siblings = [pid for pid in named if pid != leader and pid not in below]
    ranks: Dict[str, int] = {}
    for pid in [leader, *siblings, *below]:
        rank = _rank(processes, pid, RANK_VARIABLES)
        if rank is not None:
            ranks.setdefault(str(rank), pid)
    if not ranks and (siblings or command_line.is_launcher(processes.argv(leader), processes.program(leader))):
        children = [pid for pid in below if pid in named and processes.argv(pid) != processes.argv(leader)]
        ranks = {str(pid): pid for pid in children or [leader, *siblings]}
    return sorted(ranks.values()) or [leader]


def _rank(processes: Processes, pid: int, names: Tuple[str, ...]) -> Optional[int]:
    settings = processes.settings(pid)
    for name in names:
        if settings.get(name, "").isdigit():
            return int(settings[name])
    return None


def _job(processes: Processes, pid: int) -> Optional[Tuple[str, ...]]:
    """What the ranks of one distributed training have in common, or None."""
    settings = processes.settings(pid)
    values = tuple(settings.get(name, "") for name in JOB_VARIABLES)
    return values if all(values) and values[2] != "1" else None


def _started(processes: Processes, pid: int) -> int:
    stat = processes.stat(pid)
    return stat.start_ticks if stat else 0


def _zombie_named(processes: Processes, match: str) -> Optional[int]:
    """A zombie has lost its command line; its kernel name is left, and tells when it is the program's own."""
    name = match.split(" ")[0].rsplit("/", 1)[-1][:15]
    for pid in processes.pids:
        stat = None if processes.raw_command(pid) else processes.stat(pid)
        if stat and stat.state == "Z" and stat.comm == name:
            return pid
    return None


def exists(pid: int) -> bool:
    """Whether the number is taken, hidden or not; getpgid asks the kernel without sending a signal."""
    try:
        os.getpgid(pid)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return pid > 0


def state_name(letter: str) -> str:
    """running (sleeping and waiting for a disk too), stopped (by a signal or a debugger) or zombie."""
    return {"T": "stopped", "t": "stopped", "Z": "zombie", "X": "zombie"}.get(letter, "running")


def _report(processes: Processes, pid: int, ranks: List[int]) -> Dict[str, Any]:
    stat = processes.stat(pid)
    if stat is None:
        return _nobody("absent", "process %d ended while it was looked at" % pid)
    unwell = []
    for rank in ranks:
        rank_stat = processes.stat(rank)
        name = state_name(rank_stat.state) if rank_stat else "gone"
        if rank != pid and name != "running":
            unwell.append("rank process %d is %s" % (rank, name))
    return {
        "state": state_name(stat.state),
        **_about(processes, pid),
        "identity": identity.of(stat),
        "ranks": ranks,
        "reason": "; ".join(unwell[:LISTED]),
        "matches": [],
    }


def _about(processes: Processes, pid: int) -> Dict[str, Any]:
    return {
        "pid": pid,
        "started_at": identity.utc(identity.started_at(_started(processes, pid))),
        "user": user_name(uid_of(pid)),
        "command": command_line.shown(processes.argv(pid)) or (getattr(processes.stat(pid), "comm", "")),
    }


def _nobody(state: str, reason: str) -> Dict[str, Any]:
    keys = ("pid", "started_at", "user", "command", "identity")
    return {"state": state, **dict.fromkeys(keys), "ranks": [], "reason": reason, "matches": []}


def _ambiguous(processes: Processes, pids: List[int], reason: str) -> Dict[str, Any]:
    found = _nobody("ambiguous", reason)
    found["matches"] = [_about(processes, pid) for pid in pids[:LISTED]]
    return found
