"""Numbers of one window: what training did between its first and its last sample, and what it usually does. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from orchestrator.windows import GONE, Sample, Window, elapsed, spoken

AFTERMATH = 60.0
"""seconds after a window in which a training that dies counts against it"""
LONG_ENOUGH = 5.0
"""seconds: in a shorter window no wait for a core is told from chance"""
ADDED_WAIT = 0.05
"""seconds a second beyond the usual that threads wait for a core: a protected trainer stays below 0.03"""
ADDED_SHARE = 0.05
"""of the time that they wanted to run"""
FEWEST_BEFORE, FEWEST_DURING = 8, 3
"""lines of the log that a rate is judged by"""
SLOWER = 0.10
"""of its usual rate; less is within the noise of any training"""
SPREADS = 3.0
"""standard deviations (from the median of deviations) that belong to a training's own variation"""

Measured = dict[str, Any]


def measured(window: Window) -> Measured | None:
    """What changed from the first to the last sample of the same living process; None where there are no two of it.

    {seconds, steps, waited, waited_usually, share, share_usually, rate, major_faults, voluntary_switches,
    involuntary_switches, read_bytes, write_bytes, rss, pressure, orch_cpu_s, new_gpu_clients}. `waited`: seconds a
    second, summed over its threads, that they could have run but had no core; `share`: of the time that they wanted to
    run. Usually: since the process began. `rate`: {unit, usual, least, during, lines} or None. `pressure`: share of the
    time that some process of the machine waited for {cpu, io, memory}. What can't be known is None.
    """
    before, after = window["before"], window["after"]
    seconds = elapsed(before, after)
    same = before and after and before.get("identity") == after.get("identity") and before.get("identity")
    if not same or not seconds or seconds <= 0 or after.get("state") in GONE:
        return None
    waited, ran = _growth(before, after, "run_queue_wait_ns"), _growth(before, after, "run_ns")
    steps = _growth(before, after, "step")
    return {
        "seconds": round(seconds, 3),
        "steps": None if steps is None else int(steps),
        "waited": None if waited is None else waited / 1e9 / seconds,
        "waited_usually": _usually(before),
        "share": _share(waited, ran),
        "share_usually": _share(before.get("run_queue_wait_ns"), before.get("run_ns")),
        "rate": _rate(before, after),
        **{
            name: _growth(before, after, name)
            for name in ("major_faults", "voluntary_switches", "involuntary_switches")
        },
        **{
            name: _growth(before.get("io") or {}, after.get("io") or {}, name) for name in ("read_bytes", "write_bytes")
        },
        "rss": [before.get("rss"), after.get("rss")],
        "pressure": _pressure(before, after, seconds),
        "orch_cpu_s": _growth({"orch_cpu_s": 0.0, **before}, after, "orch_cpu_s"),
        "new_gpu_clients": _new_gpu_clients(window),
    }


def _growth(before: Sample, after: Sample, name: str) -> float | None:
    """What a counter gained; one that fell began anew, and tells nothing."""
    if before.get(name) is None or after.get(name) is None or after[name] < before[name]:
        return None
    growth: float = after[name] - before[name]
    return growth


def _usually(before: Sample) -> float | None:
    waited, lived = before.get("run_queue_wait_ns"), before.get("lived_s")
    return None if waited is None or not lived else waited / 1e9 / lived


def _share(waited: float | None, ran: float | None) -> float | None:
    if waited is None or ran is None:
        return None
    return waited / (waited + ran) if waited + ran > 0 else 0.0


def can_judge_waiting(measured: Mapping[str, Any]) -> bool:
    """Whether the window was long enough, and the box showed enough."""
    names = ("waited", "waited_usually", "share", "share_usually")
    return measured["seconds"] >= LONG_ENOUGH and all(measured[name] is not None for name in names)


def waited_more(measured: Mapping[str, Any]) -> bool:
    """Whether its threads waited for a core beyond noise: more of the time, more of what they wanted to run, and half
    as much again as usual."""
    if not can_judge_waiting(measured):
        return False
    added = measured["waited"] - measured["waited_usually"]
    return bool(
        added > max(ADDED_WAIT, measured["waited_usually"] / 2)
        and measured["share"] - measured["share_usually"] > ADDED_SHARE
    )


def _rate(before: Sample, after: Sample) -> dict[str, Any] | None:
    """The rate in the lines that came inside the window, against those that were there before it."""
    if after.get("rate_unit") != before.get("rate_unit"):
        return None
    last = max((step for step, _ in before.get("paces") or ()), default=None)
    earlier = [rate for _, rate in before.get("paces") or ()]
    during = [rate for step, rate in after.get("paces") or () if last is not None and step > last]
    if len(earlier) < FEWEST_BEFORE or len(during) < FEWEST_DURING:
        return None
    usual = median(earlier)
    spread = 1.4826 * median(abs(rate - usual) for rate in earlier)
    return {
        "unit": after.get("rate_unit"),
        "usual": usual,
        "least": usual - max(SLOWER * usual, SPREADS * spread),
        "during": median(during),
        "lines": len(during),
    }


def slower(rate: Mapping[str, Any] | None) -> bool:
    """Whether a rate lies below its training's own earlier variation."""
    return rate is not None and bool(rate["during"] < rate["least"])


def _pressure(before: Sample, after: Sample, seconds: float) -> dict[str, float | None] | None:
    one, other = before.get("psi"), after.get("psi")
    if not one or not other:
        return None
    found: dict[str, float | None] = {}
    for resource in ("cpu", "io", "memory"):
        some = [(psi.get(resource) or {}).get("some") or {} for psi in (one, other)]
        grown = _growth(some[0], some[1], "total_us")
        found[resource] = None if grown is None else round(grown / 1e6 / seconds, 4)
    return found


def _new_gpu_clients(window: Window) -> list[tuple[int, int]]:
    """(pid, GPU) of clients outside the training's tree that were not there at the window's start."""
    known = {pid for gpu in window["before"].get("gpus") or () for pid in gpu["strangers"]}
    if window["before"].get("gpus") is None:
        return []
    later = [sample for sample in (*window["samples"], window["after"]) if sample]
    found = {
        (pid, gpu["index"]): None
        for sample in later
        for gpu in sample.get("gpus") or ()
        for pid in gpu["strangers"]
        if pid not in known
    }
    return list(found)


# -- what a receipt does not know ----------------------------------------------------------------------------------


def limits(windows: Sequence[Window]) -> Iterator[str]:
    """What these windows can't tell: unwatched time, the distance of samples, what the box hides."""
    hosts = list(dict.fromkeys(window["host"] for window in windows))
    for host in hosts:
        where = f"{host}: " if len(hosts) > 1 else ""
        for text in _limits_of([window for window in windows if window["host"] == host]):
            yield where + text


def _limits_of(windows: Sequence[Window]) -> Iterator[str]:
    yield "speaks only of its windows, in which orch or the guarded command was at work"
    for window in windows:
        lasted = elapsed(window["before"], window["after"]) or 0.0
        if window["doing"] == "aftermath" and lasted < AFTERMATH - 1:
            yield f"training was watched for {spoken(lasted)} after the command, not for {AFTERMATH:.0f} s"
    unwatched = [text for one, other in pairwise(windows) if (text := _unwatched(one, other))]
    if unwatched:
        yield "nobody watched " + "; ".join(unwatched)
    for window in windows:
        for gap in window.get("gaps") or ():
            yield f"inside `{window['doing']}`, nobody watched from {gap['from']} to {gap['to']}: {gap['why']}"
    widest = max((_widest(window) for window in windows), default=0.0)
    if widest >= 1:
        yield f"what came and went between two samples, up to {spoken(widest)} apart, is not seen"
    watched = [window["measured"] for window in windows if window.get("measured")]
    if watched and not any(map(can_judge_waiting, watched)):
        yield f"no window showed for {LONG_ENOUGH:.0f} s how long its threads wait for a core: that was not judged"
    if watched and not any(one["rate"] for one in watched):
        yield "too few lines of its log fell into a window to judge its rate"
    samples = [sample for window in windows for sample in (window["before"], window["after"]) if sample]
    if any(_rotated(window) for window in windows):
        yield "its log was rotated or begun anew inside a window"
    hidden = sorted({str(name) for sample in samples for name in sample.get("hidden") or ()})
    if hidden:
        yield "the box hides: " + ", ".join(hidden)
    yield from dict.fromkeys(f"GPUs: {sample['gpu_note']}" for sample in samples if sample.get("gpu_note"))


def _unwatched(one: Window, other: Window) -> str | None:
    seconds = elapsed(one["after"], other["before"])
    if seconds is not None and seconds < 1:
        return None
    lasted = f" ({spoken(seconds)})" if seconds is not None else ""
    return f"from {one['to'] or '?'} to {other['from'] or '?'}{lasted}"


def _widest(window: Window) -> float:
    if window.get("widest_s") is not None:
        return float(window["widest_s"])
    looks = [sample for sample in (window["before"], *window["samples"], window["after"]) if sample]
    return max((elapsed(a, b) or 0.0 for a, b in pairwise(looks)), default=0.0)


def _rotated(window: Window) -> bool:
    one, other = ((window[name] or {}).get("log") for name in ("before", "after"))
    if not one or not other:
        return False
    return bool(one["inode"] != other["inode"] or other["size"] < one["size"])
