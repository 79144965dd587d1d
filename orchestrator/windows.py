"""Windows and their samples: distances in time, and what is kept of them. Pure.

A window is {doing, host, from, to, before, after, samples, gaps, widest_s}; a sample is what the agent's `sample` and
`witness` modules take.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

GONE = ("absent", "zombie")
"""states of a process that has ended; `ambiguous`, `hidden` or none at all say nothing about it"""
CLOCK_SET_S = 3.0
"""a wall clock that moved by this much against the time since the boot was set"""
MOST_SAMPLES = 120
"""that a window keeps of those from during it"""

Sample = Mapping[str, Any]
Window = Mapping[str, Any]


def elapsed(one: Sample | None, other: Sample | None) -> float | None:
    """Seconds from one look at a box to another look at the same box; None where that can't be known.

    By its time since the boot. After a reboot, and for samples of old receipts, which lack it, by its wall clock,
    unless that went backwards.
    """
    if one is None or other is None:
        return None
    if _same_boot(one, other):
        return float(other["monotonic"]) - float(one["monotonic"])
    seconds = apart(one, other)
    return seconds if seconds is not None and seconds >= 0 else None


def latest_end(last: Sample, now: Sample, quiet: float) -> Iterator[float]:
    """Seconds after `last` by which the process that it saw must have ended; `quiet` lie between the two looks.

    What stands in its place has started since; so has the host or container, where that is another one now.
    """
    if now.get("identity") and now.get("lived_s") is not None:
        yield max(0.0, quiet - float(now["lived_s"]))
    if now.get("up_s") is not None and now.get("incarnation") != last.get("incarnation"):
        yield max(0.0, quiet - float(now["up_s"]))


def clock_was_set(one: Sample, other: Sample) -> bool:
    """Whether the box's wall clock can't be believed from one look to the other."""
    wall = apart(one, other)
    return not _same_boot(one, other) or wall is None or abs(wall - (elapsed(one, other) or 0.0)) > CLOCK_SET_S


def _same_boot(one: Sample, other: Sample) -> bool:
    boots = {str(sample.get("incarnation")).split("/")[0] for sample in (one, other) if sample.get("incarnation")}
    return len(boots) == 1 and all(sample.get("monotonic") is not None for sample in (one, other))


def apart(one: Sample, other: Sample) -> float | None:
    """Seconds from one to the other by the wall clock of their box, negative where it went backwards."""
    if not one.get("at") or not other.get("at"):
        return None
    try:
        a, b = (datetime.fromisoformat(str(sample["at"]).replace("Z", "+00:00")) for sample in (one, other))
        return (b - a).total_seconds()
    except (ValueError, TypeError):  # no time, or one with a zone and one without
        return None


def thinned(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """At most about MOST_SAMPLES of them: every second one goes, but for those that tell of a change."""
    kept = [{key: value for key, value in sample.items() if key != "paces"} for sample in samples]
    while len(kept) > MOST_SAMPLES:
        fewer = [one for place, one in enumerate(kept) if place % 2 == 0 or _tells(one) != _tells(kept[place - 1])]
        if len(fewer) == len(kept):
            break
        kept = fewer
    return kept


def _tells(sample: Sample) -> tuple[object, ...]:
    clients = [(gpu["index"], gpu["strangers"]) for gpu in sample.get("gpus") or ()]
    return sample.get("state"), str(sample.get("identity")), str(clients)


def spoken(seconds: float) -> str:
    """`12 s`, `3 min`, `2 h 05 min`."""
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


_KINDS: dict[str, Any] = {
    **dict.fromkeys(
        ("monotonic", "lived_s", "up_s", "age_s", "interval_s", "run_ns", "run_queue_wait_ns"), int | float
    ),
    **dict.fromkeys(("major_faults", "voluntary_switches", "involuntary_switches", "rss", "orch_cpu_s"), int | float),
    **dict.fromkeys(("step", "oom_kills"), int),
    **dict.fromkeys(("at", "state", "incarnation", "reason"), str),
    **dict.fromkeys(("identity", "io", "psi", "ending", "log", "rule"), dict),
    **dict.fromkeys(("gpus", "paces", "hidden", "waiting", "ranks"), list),
}
"""of the values in a sample, where they are known"""


def is_sound(window: object) -> bool:
    """Whether a window that was kept on a box still has the form that everything here relies on."""
    if (
        not isinstance(window, dict)
        or not {"doing", "host", "from", "to", "before", "after", "samples"} <= window.keys()
    ):
        return False
    if not isinstance(window["host"], str) or not isinstance(window["samples"], list):
        return False
    samples = [window["before"], window["after"], *window["samples"]]
    return all(sample is None or (isinstance(sample, dict) and _is_sound(sample)) for sample in samples)


def _is_sound(sample: Sample) -> bool:
    if any(sample.get(name) is not None and not isinstance(sample[name], kind) for name, kind in _KINDS.items()):
        return False
    gpus, paces = sample.get("gpus") or (), sample.get("paces") or ()
    if not all(isinstance(gpu, dict) and {"index", "strangers"} <= gpu.keys() for gpu in gpus):
        return False
    return all(isinstance(pace, list) and [type(part) in (int, float) for part in pace] == [True] * 2 for pace in paces)
