"""What one line of a training log says, for the trainers whose logs orch knows. Pure functions.

    plain        `step 5296 epoch 1.04 loss 2.31 19.5K tok/s`: names and numbers in any order, with or without = or :
    huggingface  Trainer: a tqdm bar for the step, `{'loss': 2.31, ..., 'epoch': 1.04}` for the rest
    lightning    `Epoch 3:  42%|...| 420/1000 [00:33<00:45, 12.71it/s, train_loss=2.31]`, the rich bar too; the step is
                 batches since the start, epoch x batches + batch: PyTorch Lightning prints no other
    torchtitan   `step: 5296  loss: 2.31  ...  tps: 19,500  tflops: ...`
    deepspeed    `step=5296, skipped=0, ...`, `global_step=5296, RunningAvgSamplesPerSec=...`, and Megatron's
                 `iteration 5296/100000 | elapsed time per iteration (ms): 135.2 | lm loss: 2.31E+00 |`
    nanogpt      `iter 5296: loss 2.31, time 135.22ms`, modded-nanogpt's and nanochat's lines
    jsonl        one JSON object a line, under the usual names (step, global_step, loss, train/loss, ...)
    tqdm         any other bar

Every expression is linear: no repetition inside a repetition, nothing that can match one text in many ways.
"""

import json
import re
from typing import Any, Callable, Dict, Iterable, Mapping, NamedTuple, Optional, Pattern

from remote_payload.agent.progress_numbers import line_clock, number, rate_of, whole


class Reading(NamedTuple):
    """What one line told; None for what it did not."""

    step: Optional[int] = None
    epoch: Optional[float] = None
    loss: Optional[float] = None
    rate: Optional[float] = None
    unit: Optional[str] = None
    clock: Optional[float] = None
    """seconds on the line's own clock: only differences mean something"""
    dated: Optional[float] = None
    """the date and time in the line, in seconds, where it has one"""
    seconds_per_step: Optional[float] = None
    total: Optional[int] = None
    """of a bar: what it counts up to, which tells the training's bar from an evaluation's"""


Reader = Callable[[str], Optional[Reading]]

_NUMBER = r"([-+]?\d[\d,_]{0,30}(?:\.\d{0,30})?(?:e[-+]?\d{1,4})?|nan|-?inf)"
_COUNT = r"(\d[\d,_]{0,20})"


def _named(step: str, *, mark: str = "", unit: str = "tok/s", **others: str) -> Reader:
    """A reader of lines that name their numbers: a step and at least one of the others (epoch, loss, rate, ms).

    Each expression's first group is the number; a second one of `rate` is its unit, which else is `unit`. A line
    without `mark` is not looked at; expressions are compiled when the first line has it.
    """
    patterns: Dict[str, Pattern[str]] = {}

    def read(line: str) -> Optional[Reading]:
        if mark not in line:
            return None
        if not patterns:
            patterns.update((name, re.compile(text, re.IGNORECASE)) for name, text in {"": step, **others}.items())
        hits = {name: pattern.search(line) for name, pattern in patterns.items()}
        found = hits.pop("")
        texts = {name: hit.group(1) for name, hit in hits.items() if hit}
        if not found or not texts:
            return None
        hit = hits.get("rate")
        rate, told = rate_of(texts.get("rate"), hit.group(2) if hit and hit.lastindex == 2 else unit)
        milliseconds, dated = number(texts.get("ms")), line_clock(line)
        return Reading(
            step=whole(found.group(1)),
            epoch=number(texts.get("epoch")),
            loss=number(texts.get("loss")),
            rate=rate,
            unit=told,
            clock=dated,
            dated=dated,
            seconds_per_step=milliseconds / 1000 if milliseconds else None,
        )

    return read


_EPOCH = r"\bepoch\b\s{0,12}[:=]?\s{0,12}" + _NUMBER
_LOSS = (
    r"(?<!val[_/ ])(?<!valid[_/ ])(?<!validation[_/ ])(?<!test[_/ ])(?<![a-z])loss\b['\"]?\s{0,12}[:=]?\s{0,12}"
    + _NUMBER
)
_ANY_RATE = (
    _NUMBER
    + r"\s?([KMG]?\s?(?:tok(?:en)?s?|samples?|sequences|seq|it|iters?|steps?|batch(?:es)?)/s(?:ec)?|s/it|s/step)\b"
)

_plain = _named(
    r"\b(?:global[_ ]?step|steps?|iteration|iter|it)\b\s{0,12}[:=#]?\s{0,12}\[?" + _COUNT,
    epoch=_EPOCH,
    loss=_LOSS,
    rate=_ANY_RATE,
)
_torchtitan = _named(
    r"\bstep:\s{0,12}" + _COUNT + r"(?=.*\btps:)",
    loss=r"\bloss:\s{0,12}" + _NUMBER,
    rate=r"\btps:\s{0,12}" + _NUMBER,
    mark="tps:",
)
_deepspeed = _named(
    r"\b(?:global_)?step=" + _COUNT,
    unit="samples/s",
    epoch=r"\bepoch=" + _NUMBER,
    loss=r"\bloss=" + _NUMBER,
    rate=r"\bRunningAvgSamplesPerSec=" + _NUMBER,
    skipped=r"\bskipped=" + _NUMBER,
    mark="step=",
)
_megatron = _named(
    r"\biteration\s{1,12}" + _COUNT + r"\s{0,12}/",
    loss=r"\bloss:\s{0,12}" + _NUMBER,
    ms=r"\belapsed time per iteration \(ms\):\s{0,12}" + _NUMBER,
    rate=_NUMBER + r"\s+(tokens|samples) per second",
    mark="per iteration",
)
_nanogpt = _named(
    r"\biter\s+" + _COUNT + r":", loss=_LOSS, ms=r"\btime\s+" + _NUMBER + "ms", rate=_ANY_RATE, mark="iter "
)
_modded = _named(
    r"\bstep:" + _COUNT + r"/", loss=r"\btrain_loss:" + _NUMBER, ms=r"\bstep_avg:" + _NUMBER + "ms", mark="step_avg:"
)
_nanochat = _named(
    r"\bstep\s+" + _COUNT + r"(?:/\d+)?\s+\(",
    loss=_LOSS,
    ms=r"\bdt:\s{0,12}" + _NUMBER + "ms",
    rate=r"\btok/sec:\s{0,12}" + _NUMBER,
    mark="tok/sec:",
)

_BAR = re.compile(
    r"(?P<done>\d{1,12})/(?P<total>\d{1,12}) \[(?:(?P<days>\d{1,4}) days?, )?"
    r"(?:(?P<hours>\d{1,4}):)?(?P<minutes>\d\d?):(?P<seconds>\d\d)<"
    r"[^,\]]{0,60}(?:,\s{0,12}(?P<rate>[\d.]+)\s?(?P<unit>[\w/]+))?"
)
_RICH_BAR = re.compile(
    r"^Epoch (?P<epoch>\d+)/\d+ .{0,300}?\b(?P<done>\d{1,12})/(?P<total>\d{1,12}) "
    r"(?P<hours>\d{1,4}):(?P<minutes>\d\d):(?P<seconds>\d\d)"
    r" . \S+ (?P<rate>[\d.]+)(?P<unit>it/s)"
)
_EPOCH_BAR = re.compile(r"^Epoch (\d+):")
_OTHER_WORK = re.compile(
    r"loading|download|fetch|map|filter|tokeniz|generat|sav|shard|eval|valid|predict|test|sanity", re.I
)
_PERCENT = re.compile(r"\d{1,3}%\|")


def _bar(line: str) -> Optional[Reading]:
    found = _BAR.search(line)
    percent = _PERCENT.search(line)
    if not found or (percent and _OTHER_WORK.search(line[: percent.start()])):
        return None
    return _of_bar(found, line)


def _of_bar(found: "re.Match[str]", line: str) -> Reading:
    parts = found.groupdict()
    rate, unit = rate_of(parts["rate"], parts["unit"])
    seconds = int(parts["seconds"]) + 60 * int(parts["minutes"])
    seconds += 3600 * int(parts["hours"] or 0) + 86400 * int(parts.get("days") or 0)
    loss = _LOSS_RE.search(line, found.end())
    return Reading(
        step=int(parts["done"]),
        loss=number(loss.group(1)) if loss else None,
        rate=rate,
        unit=unit,
        clock=float(seconds),
        seconds_per_step=1 / rate if rate and unit == "it/s" else None,
        total=int(parts["total"]),
    )


_LOSS_RE = re.compile(_LOSS, re.IGNORECASE)


def _lightning(line: str) -> Optional[Reading]:
    named, found = _EPOCH_BAR.match(line), _BAR.search(line)
    if not (named and found):
        found = _RICH_BAR.match(line)
        named = found
    if not (named and found):
        return None
    bar, epoch = _of_bar(found, line), int(named.group(1))
    batches = bar.total or 0
    done = bar.step or 0
    progress = epoch + done / batches if batches else float(epoch)
    return bar._replace(step=epoch * batches + done, epoch=round(progress, 4), total=None)


def _huggingface(line: str) -> Optional[Reading]:
    if line.startswith("{'"):
        fields = {name: value for name, value in _PAIR.findall(line)}
        if "loss" not in fields and "train_loss" not in fields:
            return None
        step = whole(fields.get("step", fields.get("global_step")))
        return Reading(step=step, epoch=number(fields.get("epoch")), loss=number(fields.get("loss")))
    if not _PERCENT.match(line):
        return None
    return _bar(line)


_PAIR = re.compile(r"'([\w/]{1,60})': '?([^',}\s]{1,40})")

_STEP_NAMES = (
    "step",
    "global_step",
    "trainer/global_step",
    "_step",
    "current_steps",
    "iteration",
    "iter",
    "train/global_step",
)
_LOSS_NAMES = ("loss", "train_loss", "train/loss", "training_loss", "lm loss", "lm_loss", "loss/train")
_RATE_NAMES = {
    "tok/s": (
        "tok_per_s",
        "tokens_per_sec",
        "tokens_per_second",
        "tok/s",
        "tokens/s",
        "tps",
        "throughput",
        "tokens_per_s",
    ),
    "samples/s": ("samples_per_second", "samples_per_sec", "samples/s", "train_samples_per_second"),
    "it/s": ("steps_per_second", "it/s", "steps_per_sec", "train_steps_per_second"),
}
_CLOCK_NAMES = ("timestamp", "_timestamp", "time", "ts", "wall_time", "_runtime", "created_at")


def of_mapping(fields: Mapping[str, Any]) -> Optional[Reading]:
    """A reading from a JSON object under the usual names; None without a step."""
    step = whole(_first(fields, _STEP_NAMES))
    if step is None:
        return None
    rate, unit = None, None
    for unit_name, names in _RATE_NAMES.items():
        rate, unit = rate_of(_first(fields, names), unit_name)
        if rate is not None:
            break
    when = _first(fields, _CLOCK_NAMES)
    return Reading(
        step=step,
        epoch=number(_first(fields, ("epoch", "train/epoch"))),
        loss=number(_first(fields, _LOSS_NAMES)),
        rate=rate,
        unit=unit,
        clock=line_clock(when) if isinstance(when, str) else number(when),
    )


def _first(fields: Mapping[str, Any], names: Iterable[str]) -> Any:
    for name in names:
        if fields.get(name) is not None:
            return fields[name]
    return None


def _jsonl(line: str) -> Optional[Reading]:
    if not line.startswith("{") or '"' not in line:
        return None
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return of_mapping(fields) if isinstance(fields, dict) else None


def _either(*readers: Reader) -> Reader:
    def read(line: str) -> Optional[Reading]:
        for reader in readers:
            reading = reader(line)
            if reading:
                return reading
        return None

    return read


PRESETS: Dict[str, Reader] = {
    "jsonl": _jsonl,
    "lightning": _lightning,
    "torchtitan": _torchtitan,
    "deepspeed": _either(_deepspeed, _megatron),
    "nanogpt": _either(_nanogpt, _modded, _nanochat),
    "huggingface": _huggingface,
    "plain": _plain,
    "tqdm": _bar,
}
"""by name, the most particular first: the order in which they are tried on a log of unknown kind"""
