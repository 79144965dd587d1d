"""Results as TensorBoard event files: one small file a result, in the folder of its run and job.

The file's name holds the result's id, so the same result is never there twice. Needs the package `tensorboard` (extra
`tensorboard`), whose record writer and messages import no torch.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.actions.comparison import is_number
from orchestrator.errors import ConfigError
from orchestrator.model import Estimate, Result

LIMIT = 500
"""numbers of one result"""
LEFT_OUT = ("schema", "step", "provenance")
"""keys of a result file that measure nothing"""
UNFINISHED = "."
"""how the name of a file begins that was not written to its end: it holds no result yet"""


def write(folder: Path, result: Result, document: Mapping[str, Any]) -> Path | None:
    """Add a result with the numbers of its document at its checkpoint's step; None where it is there already.

    Raises ConfigError without the package, OSError.
    """
    place = folder / _name(result.run) / _name(result.job)
    mark = f".orch-{result.host}-{_name(result.id)}"
    there = [file.name for file in place.iterdir()] if place.is_dir() else []
    if any(name.endswith(mark) and not name.startswith(UNFINISHED) for name in there):
        return None
    records = list(_records(result, document))
    place.mkdir(parents=True, exist_ok=True)
    name = f"events.out.tfevents.{time.time_ns() // 10**6:015d}.{socket.gethostname()}{mark}"
    temporary = place / f"{UNFINISHED}{os.getpid()}{mark}"
    try:
        writer = _record_writer(temporary)
        try:
            for record in records:
                writer.write(record)
        finally:
            writer.close()
        temporary.replace(place / name)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return place / name


def scalars(result: Result, document: Mapping[str, Any]) -> dict[str, float]:
    """Tag -> value: the headline and the baseline's with their intervals, and every number that the document names."""
    found: dict[str, float] = {}
    for name, estimate in (("headline", result.headline), ("baseline_headline", result.baseline)):
        found.update(_of_estimate(name, estimate))
    found.update(_numbers(document, ""))
    return dict(list(found.items())[:LIMIT])


def _name(text: str) -> str:
    """One step of a path: run and job stand in a file that a host wrote, and lead nowhere else."""
    plain = "".join(char if char.isprintable() and char != "/" else "_" for char in text)[:80]
    return plain if plain.strip(".") else f"_{plain}"


def _of_estimate(name: str, estimate: Estimate | None) -> dict[str, float]:
    if estimate is None:
        return {}
    parts = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
    return {f"{name}/{part}": number for part, number in parts.items() if number is not None}


def _numbers(document: Mapping[str, Any], above: str) -> Iterator[tuple[str, float]]:
    for key, value in document.items():
        if not above and key in LEFT_OUT:
            continue
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{above}{key}/")
        elif is_number(value):
            yield f"{above}{key}", float(value)


def _records(result: Result, document: Mapping[str, Any]) -> Iterator[bytes]:
    """Serialised events: the version that every event file begins with, then all numbers at once."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
    except ImportError as error:
        raise ConfigError(f"tensorboard can't be imported: {error}", hint="pip install 'orch[tensorboard]'") from None
    now = time.time()
    yield bytes(Event(wall_time=now, file_version="brain.Event:2").SerializeToString())
    values = [Summary.Value(tag=tag, simple_value=number) for tag, number in scalars(result, document).items()]
    yield bytes(Event(wall_time=now, step=result.step, summary=Summary(value=values)).SerializeToString())


def _record_writer(path: Path) -> Any:
    from tensorboard.summary.writer.record_writer import RecordWriter

    return RecordWriter(path.open("wb"))
