"""What an evaluation has drafted so far, so that a killed one goes on: one line a batch, appended as it is done."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drafting import Outcome, Place
from refusal import Refused


class Journal:
    """Outcomes by role and place. A batch is in the file whole or not at all: a torn last line is cut off."""

    def __init__(self, file: Path, key: str, *, resume: bool) -> None:
        """`key` names everything that decides the numbers; to resume another evaluation raises `Refused`."""
        self.file = file
        self._known: dict[tuple[str, int, int], Outcome] = {}
        lines = _whole_lines(file) if resume else []
        if lines and lines[0] != {"key": key}:
            raise Refused(
                f"{file}: belongs to an evaluation of other files or settings. Leave out --resume to start afresh"
            )
        for line in lines[1:]:
            for index, anchor, *outcome in line["drafts"]:
                self._known[line["role"], index, anchor] = Outcome.from_json(anchor, outcome)
        with open(file, "w", encoding="utf-8") as stream:
            stream.writelines(json.dumps(line) + "\n" for line in lines or [{"key": key}])

    def recall(self, role: str, places: Sequence[Place]) -> list[Outcome] | None:
        """The outcomes of a batch that an earlier run did; None where it didn't do the whole batch."""
        found = [self._known.get((role, *place)) for place in places]
        return None if None in found else [outcome for outcome in found if outcome is not None]

    def add(self, role: str, places: Sequence[Place], outcomes: Sequence[Outcome]) -> None:
        """Keep a batch."""
        drafts = [[*place, *outcome.to_json()] for place, outcome in zip(places, outcomes, strict=True)]
        with open(self.file, "a", encoding="utf-8") as stream:
            stream.write(json.dumps({"role": role, "drafts": drafts}, separators=(",", ":")) + "\n")

    def remove(self) -> None:
        """The evaluation is finished."""
        self.file.unlink(missing_ok=True)


def _whole_lines(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    lines: list[dict[str, Any]] = []
    for text in file.read_bytes().split(b"\n")[:-1]:
        try:
            lines.append(json.loads(text))
        except ValueError:
            break
    return lines
