"""How far a training is, how fast, and since when it has been silent: from its log, whatever wrote it."""

import json
import math
import os
import re
import time
from itertools import islice
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from remote_payload.agent.identity import utc
from remote_payload.agent.logtail import FIRST, MOST, Tail, born_at, read_head, read_tail
from remote_payload.agent.progress_formats import PRESETS, Reader, Reading, of_mapping
from remote_payload.agent.progress_numbers import line_clock

KEPT = 200
"""readings from the end of the log that are looked at"""
ENOUGH = 40
"""of them show which preset fits"""
TIME_LIMIT_S = 1.0
"""of CPU for reading lines, which on a busy box takes longer; what was not read by then counts as not there"""
LEAST_SILENCE_S = 60.0
USUAL_INTERVALS = 10.0
"""stalled = silent for longer than this many of its own usual intervals, and than LEAST_SILENCE_S"""
ASSUMED_INTERVAL_S = 60.0
"""between two lines of a log whose pace can't be known"""
SAME_START_S = 600.0
"""a log born this close to the process's start was begun by it"""
LEAST_AGE_S = 10.0
"""a log younger than this tells no pace"""
HEAD = 64 * 1024
BLOCK = 8192
"""bytes that a buffering writer holds back at most"""
_LIKELY = re.compile(r"step|iter|loss|/s|s/it|epoch", re.IGNORECASE)
_FLAT_OBJECT = re.compile(r"\{[^{}]{0,4000}\}")

Recognise = Callable[[Sequence[str]], List[Reading]]


class Pace(NamedTuple):
    """How fast the log moves."""

    steps_per_s: Optional[float] = None
    interval: Optional[float] = None
    """usual seconds between two lines that tell a step"""
    source: Optional[str] = None
    """timestamps, line (its own time a step) or log (its age)"""


def read(log: str, pattern: Optional[str], now: float, started: Optional[float] = None) -> Optional[Dict[str, Any]]:
    """{step, epoch, loss, rate, rate_unit, age_s, stalled, steps_per_s, pace_from, interval_s, paces, log, at}, or None
    without any progress.

    `pattern` is the name of a preset (progress_formats), a regular expression with some of the named groups step,
    epoch, loss, rate and unit, or None: then every preset is tried. `log` may also be a metrics.jsonl or a
    trainer_state.json. Only the end is read: 256 KiB, and up to 4 MiB while nothing is recognised; where that is
    nothing, a log just rotated, the end of LOG.1.

    rate: in plain units of `rate_unit` ("19.5K tok/s" -> 19500.0, "tok/s"); seconds an iteration become "it/s".
    age_s: seconds since the log was last written, by this host's own clock (`now`, seconds since the epoch), and when
    its lines carry a time, also from the last step's line to the last line, so that a warning repeated for hours
    does not pass for progress. `at` is that moment.
    stalled: age_s is over 60 s and over 10 usual intervals between step lines. The interval is that of the lines' own
    times, else of steps_per_s; of a log that tells neither, it is taken as 60 s. A writer that fills blocks shows
    many steps at once: then a block's worth of steps is its interval.
    steps_per_s, from the first of these that is there (`pace_from`): "timestamps", the steps between the oldest and
    newest of the last lines over the time between them (dates, JSON time fields, a bar's elapsed time); "line", the
    last line's own time a step or steps a second; "log", the steps told in the whole file over its age, only where
    the file was born with the process (`started`, seconds since the epoch). None otherwise.
    interval_s: usual seconds between two step lines, as far as it is known. paces: [step, rate] of the last lines,
    oldest first: their own rate, or steps a second by their own times where they name none. log: {inode, size} of the
    file that was read, which tell that it was rotated.
    A loss of nan or inf is given as text, since JSON has no such numbers.

    Raises AgentError(kind="config") for a log that can't be read, or a pattern that is no expression or too slow.
    """
    log = os.path.expanduser(log)
    recognise = _recogniser(log, pattern)
    rotated = os.path.isfile(log + ".1")
    tail, readings = (None, []) if rotated and not os.path.exists(log) else _end_of(log, recognise)
    if not readings and rotated:
        tail, readings = _end_of(log + ".1", recognise)
    if tail is None or not readings:
        return None
    newest_first = _main_series(readings)
    pace = _pace(newest_first)
    if pace.steps_per_s is None and started is not None:
        pace = _pace_of_log(log, recognise, tail, newest_first, started)
    age = max(0.0, now - tail.modified) + _silence_inside(tail.lines, newest_first[0])
    rated = next((reading for reading in newest_first if reading.rate is not None), Reading())
    return {
        "step": next((reading.step for reading in newest_first if reading.step is not None), None),
        "epoch": next((_number(reading.epoch) for reading in newest_first if reading.epoch is not None), None),
        "loss": next((_number(reading.loss) for reading in newest_first if reading.loss is not None), None),
        "rate": rated.rate,
        "rate_unit": rated.unit,
        "age_s": round(age, 3),
        "stalled": age > max(LEAST_SILENCE_S, USUAL_INTERVALS * _visible_interval(pace, tail)),
        "steps_per_s": pace.steps_per_s,
        "pace_from": pace.source,
        "interval_s": pace.interval,
        "paces": _paces(newest_first),
        "log": {"inode": tail.inode, "size": tail.size},
        "at": utc(now - age),
    }


def _recogniser(log: str, pattern: Optional[str]) -> Recognise:
    """What turns lines into readings, newest first: the named preset, the user's own expression, or any preset."""
    if pattern in PRESETS:
        return lambda lines: _by(PRESETS[str(pattern)], lines, time.thread_time() + TIME_LIMIT_S)
    if pattern is not None:
        from remote_payload.agent.own_pattern import own_pattern

        return own_pattern(pattern, KEPT, TIME_LIMIT_S)
    if log.endswith(".json"):
        return _trainer_state
    return _by_any_preset


def _end_of(log: str, recognise: Recognise) -> Tuple[Optional[Tail], List[Reading]]:
    """The end of the log, and what its last lines told, newest first."""
    size = FIRST
    while True:
        tail = read_tail(log, size)
        readings = recognise(tail.lines)
        if readings or tail.whole or size >= MOST:
            return tail, readings
        size *= 4


def _by(reader: Reader, lines: Sequence[str], deadline: float) -> List[Reading]:
    found: List[Reading] = []
    for line in reversed(lines):
        reading = reader(line)
        if reading:
            found.append(reading)
        if len(found) == KEPT or time.thread_time() > deadline:
            break
    return found


def _by_any_preset(lines: Sequence[str]) -> List[Reading]:
    """What the fitting preset reads: the most particular of those that read at least half as much as the best does."""
    deadline = time.thread_time() + TIME_LIMIT_S
    likely = list(islice((line for line in reversed(lines) if _LIKELY.search(line)), KEPT))[::-1]
    for last in (likely[-ENOUGH:], likely):
        hits = [(len(_told(_by(reader, last, deadline))), reader) for reader in PRESETS.values()]
        most = max(count for count, _ in hits)
        if most:
            fitting = next(reader for count, reader in hits if 2 * count >= most)
            return _by(fitting, likely, deadline)
    return []


def _told(readings: List[Reading]) -> List[Reading]:
    return [reading for reading in readings if reading.step is not None or reading.epoch is not None]


def _trainer_state(lines: Sequence[str]) -> List[Reading]:
    """What transformers' Trainer writes beside a checkpoint, as a log: its log_history, newest first.

    Of a file too long to be read whole, the entries in its end.
    """
    text = "\n".join(lines)
    try:
        state = json.loads(text)
    except (ValueError, RecursionError):
        state = {"log_history": [_object(piece) for piece in _FLAT_OBJECT.findall(text)[-KEPT:]]}
    history = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(history, list):
        return []
    entries = [entry for entry in reversed(history[-KEPT:]) if isinstance(entry, dict)]
    readings = [of_mapping(entry) for entry in [state, *entries]]
    return [reading for reading in readings if reading is not None]


def _object(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _main_series(readings: List[Reading]) -> List[Reading]:
    """Without the bars of evaluations and the like: of several bars the training's has run longest."""
    longest: Dict[int, float] = {}
    for reading in readings:
        if reading.total is not None:
            longest[reading.total] = max(longest.get(reading.total, 0.0), reading.clock or 0.0)
    if len(longest) < 2:
        return readings
    main = max(longest, key=lambda total: longest[total])
    return [reading for reading in readings if reading.total in (None, main)]


def _pace(newest_first: Sequence[Reading]) -> Pace:
    told = [reading for reading in newest_first if reading.step is not None]
    chain = told[:1]
    for older in told[1:]:  # back to the last restart, or step of the clock
        newer = chain[-1]
        if older.clock is None or newer.clock is None or older.clock > newer.clock or _step(older) > _step(newer):
            break
        chain.append(older)
    if len(chain) > 1:
        steps = _step(chain[0]) - _step(chain[-1])
        seconds = (chain[0].clock or 0.0) - (chain[-1].clock or 0.0)
        if steps > 0 and seconds >= 1:
            moves = len({reading.step for reading in chain}) - 1
            return Pace(steps / seconds, seconds / moves, "timestamps")
    own = next((reading.seconds_per_step for reading in told if reading.seconds_per_step), None)
    if own:
        spacing = _step(told[0]) - _step(told[1]) if len(told) > 1 else 1
        return Pace(1 / own, max(1, spacing) * own, "line")
    return Pace()


def _paces(newest_first: Sequence[Reading]) -> List[List[float]]:
    """[step, rate] of each line that tells both, oldest first; where no line names a rate, steps a second."""
    told = [reading for reading in reversed(newest_first) if reading.step is not None]
    named = [[_step(reading), reading.rate] for reading in told if reading.rate is not None]
    if named:
        return [[float(step), float(rate or 0)] for step, rate in named]
    found = []
    for older, newer in zip(told, told[1:]):
        seconds = (newer.clock or 0.0) - (older.clock or 0.0)
        if older.clock is not None and seconds > 0 and _step(newer) > _step(older):
            found.append([float(_step(newer)), (_step(newer) - _step(older)) / seconds])
    return found


def _step(reading: Reading) -> int:
    return reading.step or 0


def _pace_of_log(log: str, recognise: Recognise, tail: Tail, newest_first: Sequence[Reading], started: float) -> Pace:
    """Steps of the whole file over its age, when this process began the file and it was not rotated since."""
    told = [reading for reading in newest_first if reading.step is not None]
    born = None if os.path.exists(log + ".1") else born_at(log)
    if born is None or abs(born - started) > SAME_START_S or len(told) < 2:
        return Pace()
    first = [reading for reading in recognise(read_head(log, HEAD)[:KEPT]) if reading.step is not None]
    steps = _step(told[0]) - _step(first[-1]) if first else 0
    spacing = (_step(told[0]) - _step(told[-1])) / (len(told) - 1)
    age = tail.modified - born
    if steps <= 0 or spacing <= 0 or age < LEAST_AGE_S:
        return Pace()
    return Pace(steps / age, age * spacing / steps, "log")


def _silence_inside(lines: Sequence[str], newest: Reading) -> float:
    """Seconds from the last step's line to the last line, by the times that both carry; 0 where they carry none."""
    if newest.dated is None:
        return 0.0
    last = next((clock for clock in map(line_clock, reversed(lines[-KEPT:])) if clock is not None), newest.dated)
    return max(0.0, last - newest.dated)


def _visible_interval(pace: Pace, tail: Tail) -> float:
    """Usual seconds between two step lines as this file shows them."""
    interval = pace.interval or ASSUMED_INTERVAL_S
    if tail.in_blocks and tail.lines:
        interval *= max(1.0, BLOCK * len(tail.lines) / sum(len(line) + 1 for line in tail.lines))
    return interval


def _number(value: Optional[float]) -> Any:
    return str(value) if value is not None and not math.isfinite(value) else value
