"""Windows of samples -> Receipt: what happened to training while orch was at work on its box. Pure, like `plan`.

A window is {doing, host, from, to, before, after, samples, gaps}; a sample is what the agent's `sample` and `witness`
modules take. Distances in time come from the box's own count of seconds since its boot: a clock may be set, and the
clocks of two machines are never compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from orchestrator import measures
from orchestrator.measures import AFTERMATH
from orchestrator.model import Receipt, TrainingVerdict
from orchestrator.windows import GONE, Sample, Window, clock_was_set, elapsed, latest_end, spoken

WORST: tuple[TrainingVerdict, ...] = ("changed", "ended", "not_observed", "undisturbed")
Judged = tuple[TrainingVerdict, tuple[str, ...]]
ENDINGS = {
    "finished": "it finished by itself",
    "crashed": "it crashed",
    "killed": "it was killed",
    "stopped": "it was asked to stop, and did",
}


def receipt(windows: Sequence[Window]) -> Receipt:
    """The verdict over all windows, in their order, with its reasons and limits.

    `changed` speaks of a window and of AFTERMATH behind it; a training that is gone later than that, or that is known
    to have finished by itself, has `ended`. With several training hosts each one is judged alone, and the worst counts:
    `reasons` are of those that were worst off, `hosts` holds all.
    """
    windows = tuple({**window, "measured": measures.measured(window)} for window in windows)
    hosts = list(dict.fromkeys(window["host"] for window in windows))
    told = {host: _judge([window for window in windows if window["host"] == host]) for host in hosts}
    verdict: TrainingVerdict = min((verdict for verdict, _ in told.values()), key=WORST.index, default="not_observed")
    worst = [host for host in hosts if told[host][0] == verdict]
    name = len(hosts) > 1
    reasons = tuple(f"{host}: {reason}" if name else reason for host in worst for reason in told[host][1])
    return Receipt(
        verdict=verdict,
        reasons=reasons or ("no training box was looked at",),
        windows=windows,
        limits=tuple(measures.limits(windows)),
        hosts=tuple({"host": host, "verdict": told[host][0], "reasons": list(told[host][1])} for host in hosts),
    )


def brief(receipt: Receipt) -> Receipt:
    """Without the samples from inside the windows: what lists of results need; a file of its own holds the whole."""
    return replace(receipt, windows=tuple({**window, "samples": []} for window in receipt.windows))


def _judge(windows: Sequence[Window]) -> Judged:
    """One training on one host."""
    first = next((one["before"] for one in windows if _identity(one["before"])), None)
    if first is None:
        return "not_observed", (_never_seen(windows),)
    earlier: Window | None = None
    slowed: tuple[str, ...] = ()
    for one in windows:
        judged = _between(earlier, one) if earlier is not None else None
        if judged is None and _identity(one["before"]):
            judged, earlier = _inside(one), one
            slowed += tuple(_load(one))
        if judged is not None:
            verdict, reasons = judged
            return ("changed", (*slowed, *reasons)) if slowed else (verdict, reasons)
    assert earlier is not None
    return ("changed", slowed) if slowed else ("undisturbed", tuple(_all_well(windows, first, earlier["after"])))


def _never_seen(windows: Sequence[Window]) -> str:
    samples = [sample for one in windows for sample in (one["after"], one["before"]) if sample]
    state = next((sample.get("state") for sample in samples if sample.get("state")), None)
    reasons = [sample["reason"] for sample in samples if sample.get("reason")]
    reason = next(iter(reasons or [gap["why"] for one in windows for gap in one.get("gaps") or ()]), "")
    seen = f" ({state}{': ' if reason else ''}{reason})" if state else f" ({reason})" if reason else ""
    return f"no training process was seen, so nothing can be said of it{seen}"


# -- identity and state --------------------------------------------------------------------------------------------


def _identity(sample: Sample | None) -> object:
    """Of a process that lives: a zombie still has its number, but has ended."""
    return None if sample is None or sample.get("state") in GONE else sample.get("identity")


def _observed(sample: Sample | None) -> bool:
    """Whether a look said what became of the process. One that failed, or that /proc hid, says nothing."""
    return _identity(sample) is not None or (sample or {}).get("state") in GONE


def _inside(window: Window) -> Judged | None:
    """What a change between two looks of one window amounts to."""
    doing = _while(window)
    looks = [window["before"], *(look for look in window["samples"] if _observed(look))]
    if _observed(window["after"]):
        looks.append(window["after"])
    for before, after in pairwise(looks):
        edited = _edited(before, after)
        if _identity(after) != _identity(before):
            if edited:
                return "not_observed", (f"{doing}: {edited}",)
            how = _how(after)
            if how == "finished":
                return "ended", (f"{_ending(after)} {doing}",)
            return "changed", (f"{doing}: {_became(before, after)}",)
        gone = sorted(set(before.get("ranks") or ()) - set(after.get("ranks") or ()))
        if gone and not edited:
            return "changed", (f"{doing}: of its ranks, process {', '.join(map(str, gone))} is gone",)
        if after["state"] != before["state"]:
            return "changed", (f"{doing}: process {_pid(before)} went from {before['state']} to {after['state']}",)
    if not _observed(window["after"]):
        why = next((gap["why"] for gap in window.get("gaps") or () if gap.get("why")), "")
        return "not_observed", (f"{doing}: the process could not be seen afterwards{': ' if why else ''}{why}",)
    return None


def _while(window: Window) -> str:
    if window["doing"] == "command":
        return "while the command ran"
    if window["doing"] == "aftermath":
        return f"within {AFTERMATH:.0f} s after the command"
    return f"while orch did `{window['doing']}` on {window['host']}"


def _after(window: Window) -> str:
    return "the command" if window["doing"] in ("command", "aftermath") else f"orch did `{window['doing']}`"


def _edited(before: Sample, after: Sample) -> str:
    """Why two looks say nothing about one process: they went by two rules. Samples of earlier versions hold none."""
    first, then = before.get("rule"), after.get("rule")
    if not first or not then or first == then:
        return ""
    told = [", ".join(f"{key}: {value}" for key, value in rule.items()) for rule in (first, then)]
    return f"its rule in hosts.yaml was {told[0]}, and is now {told[1]}, so what became of {_pid(before)} was not seen"


def _became(before: Sample, after: Sample) -> str:
    if _identity(after) is not None:
        return f"process {_pid(before)} was replaced by {_replacement(before, after)}"
    told = [_ending(after)] if _how(after) else [after.get("reason"), _ending(after, before)]
    return f"process {_pid(before)} is {after['state'] or 'gone'}: {'; '.join(filter(None, told))}"


def _replacement(before: Sample, after: Sample) -> str:
    if _boot(before) != _boot(after):
        return f"{_pid(after)} after a restart of the host or container"
    return f"{_pid(after)}" if _pid(before) != _pid(after) else "another one with the same number"


def _pid(sample: Sample) -> object:
    return (sample.get("identity") or {}).get("pid") or sample.get("pid")


def _boot(sample: Sample) -> object:
    """The incarnation of the host or container."""
    return sample.get("incarnation") or (sample.get("identity") or {}).get("incarnation")


def _how(sample: Sample) -> str | None:
    return (sample.get("ending") or {}).get("how")


def _ending(sample: Sample, before: Sample | None = None) -> str:
    """In words, with what tells it."""
    how = _how(sample)
    if how is None:
        kills = (sample.get("oom_kills") or 0) - ((before or {}).get("oom_kills") or sample.get("oom_kills") or 0)
        hint = f"; the kernel of that machine killed {kills} for want of memory meanwhile" if kills > 0 else ""
        return f"how it ended can't be known{hint}"
    return f"{ENDINGS.get(how, how)} ({sample['ending']['why']})"


# -- between two windows -------------------------------------------------------------------------------------------


def _between(earlier: Window, later: Window) -> Judged | None:
    """What happened while orch was not at work; None where the same process goes on."""
    last, now = earlier["after"], later["before"]
    if not _observed(now):
        doing = f"`{later['doing']}` on {later['host']}"
        return "not_observed", (f"before orch did {doing}: the process could not be seen",)
    if _identity(now) == _identity(last):
        quiet = elapsed(last, now)
        if now["state"] != last["state"] and quiet is not None and quiet <= AFTERMATH:
            went = f"process {_pid(now)} went from {last['state']} to {now['state']}"
            return "changed", (f"{went} within {quiet:.0f} s after {_after(earlier)}",)
        return None
    if edited := _edited(last, now):
        return "not_observed", (f"before orch did `{later['doing']}` on {later['host']}: {edited}",)
    if _how(now) == "finished":
        return "ended", (f"{_ending(now)} while orch was not at work on its box",)
    within, when = _soon_after(last, now)
    if within:
        became = "was replaced" if _identity(now) else "was gone"
        told = f": {_ending(now)}" if _how(now) else ""
        return "changed", (f"the process {became}{when} after {_after(earlier)}{told}",)
    return "ended", (f"{_what_ended(last, now)}, while orch was not at work on its box; {when}",)


def _what_ended(last: Sample, now: Sample) -> str:
    if _boot(last) != _boot(now):
        ended = "training ended with a restart of the host or container"
    elif _identity(now) is not None:
        return f"training ended and was started again (process {_pid(last)}, now {_replacement(last, now)})"
    else:
        ended = "training ended by itself"
    return f"{ended}: {_ending(now, last if _boot(last) == _boot(now) else None)}"


def _soon_after(last: Sample, now: Sample) -> tuple[bool, str]:
    """Whether the process that `last` saw died within AFTERMATH after that look, and in words how long after.

    The later look bounds the time, and so does the start of the one that took its place. Where that is too wide, the
    training's log tells when it was last alive, unless the box's clock was set meanwhile.
    """
    quiet = elapsed(last, now)
    if quiet is None:
        return False, "when can't be told: the host was restarted and its clock was set"
    bound = min((quiet, *latest_end(last, now, quiet)))
    if bound <= AFTERMATH:
        return True, f" within {bound:.0f} s"
    silent, spacing = now.get("age_s"), last.get("interval_s")
    if _identity(now) or silent is None or clock_was_set(last, now):
        return False, f"when, within {spoken(bound)}, can't be told"
    alive = max(0.0, quiet - silent)
    if alive > AFTERMATH:
        return False, f"its log still moved {spoken(alive)} after"
    if spacing is not None and alive + spacing <= AFTERMATH:
        return True, f"; its log ends {alive:.0f} s"
    return False, f"when, within {spoken(bound)}, can't be told"


# -- load ----------------------------------------------------------------------------------------------------------


def _load(window: Window) -> Iterator[str]:
    """What slowed training down inside a window, beyond its own variation."""
    measured = window["measured"]
    if not measured or window["doing"] == "aftermath":
        return
    doing = _while(window)
    after = window["after"] or {}
    before = window["before"] or {}
    if after.get("stalled") and before.get("stalled") is False:
        yield f"{doing}: no step for {after['age_s']:.0f} s"
    if measures.slower(measured["rate"]):
        rate = measured["rate"]
        usual = f"usually {rate['usual']:.4g}, at least {rate['least']:.4g}"
        yield f"{doing}: it made {rate['during']:.4g} {rate['unit'] or 'steps/s'}, {usual}"
    if measures.waited_more(measured):
        share = f"{measured['waited']:.0%} of the time for a core, usually {measured['waited_usually']:.0%}"
        yield f"{doing}: its threads waited {share}{_own_part(measured)}"
    for pid, gpu in measured["new_gpu_clients"]:
        yield f"{doing}: process {pid} came to GPU {gpu}"


def _own_part(measured: Mapping[str, Any]) -> str:
    own = measured["orch_cpu_s"]
    return (
        "" if own is None else f" (orch's own processes there used {own:.1f} s of CPU in {measured['seconds']:.0f} s)"
    )


def _all_well(windows: Sequence[Window], first: Sample, last: Sample) -> Iterator[str]:
    known = [s["step"] for one in windows for s in (one["before"], one["after"]) if s and s.get("step") is not None]
    steps = f", step {known[0]} to {known[-1]}" if known and known[-1] > known[0] else ""
    if len(known) > 1 and known[-1] == known[0]:
        steps = f", still at step {known[0]}"
    stopped = ", stopped all the time" if last.get("state") == "stopped" else ""
    yield f"same process {_pid(first)} since {first['started_at']}{steps}{stopped}"
    judged = [one["measured"] for one in windows if one["measured"] and measures.can_judge_waiting(one["measured"])]
    if judged:
        worst = max(judged, key=lambda measured: float(measured["waited"]))
        yield f"waited {worst['waited']:.1%} of the time for a core at most, usually {worst['waited_usually']:.1%}"
    rates = [one["measured"]["rate"] for one in windows if one["measured"] and one["measured"]["rate"]]
    if rates:
        least = min(rates, key=lambda rate: float(rate["during"]) / float(rate["usual"] or 1))
        yield f"made {least['during']:.4g} {least['unit'] or 'steps/s'} at least, usually {least['usual']:.4g}"
    if not judged and not rates:
        yield "neither its waiting nor its rate could be judged: orch was at work too shortly"
