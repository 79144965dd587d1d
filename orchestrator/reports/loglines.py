"""A followed log as lines: what `orch logs` prints, for people and for programs.

Memory stays flat: of a line without an end only its last state and at most LONGEST characters are held.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any, TextIO

from orchestrator.answers import Json
from orchestrator.model import Run
from orchestrator.reports.documents import run_body
from orchestrator.reports.envelope import SCHEMA
from orchestrator.reports.text import shown

LONGEST = 4000
"""characters of a line that are shown"""
EVERY = 10.0
"""seconds between two states of a progress bar where there is no terminal"""
WIDTH = 120
"""characters of a progress bar that are redrawn in place"""
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
"""colours and movements of the cursor"""


class Lines:
    """Text that arrives in pieces, cut into lines; a carriage return lets the next text replace the line."""

    def __init__(self) -> None:
        self.unfinished = ""
        """the last line's state, whose end has not come"""
        self._replace = False

    def feed(self, text: str) -> Iterator[str]:
        """The lines that this piece ends."""
        *whole, last = text.split("\n")
        for line in whole:
            self._add(line)
            yield self.unfinished
            self.unfinished, self._replace = "", False
        self._add(last)

    def _add(self, part: str) -> None:
        for index, state in enumerate(part.split("\r")):
            self._replace = self._replace or index > 0
            if state:
                kept = "" if self._replace else self.unfinished
                self.unfinished, self._replace = (kept + state)[: LONGEST + 1], False


class LogLines:
    """Prints a log while it is followed. What it hears is `look` of actions/runs.follow."""

    def __init__(self, out: TextIO, err: TextIO, *, as_json: bool) -> None:
        self.warnings: list[str] = []
        self.body: dict[str, Any] = {}
        self.run_id = ""
        self._out, self._err, self._as_json = out, err, as_json
        self._terminal = out.isatty() and not as_json
        self._lines = Lines()
        self._offset = 0
        self._bar = ""
        """what stands on the terminal's last line, or was said last of a bar"""
        self._said = time.monotonic()
        self._state = ""

    def found(self, run: Run) -> None:
        """Which run it is."""
        self.run_id = run.id
        self.body = {"run": run_body(run), "offset": 0}

    def looked(self, look: Json) -> None:
        """Print what has come since the last look."""
        self._offset = look["place"]["offset"]
        self.body["offset"] = self._offset
        for note in (*look.get("notes", ()), *([f"{look['skipped']} bytes were left out"] if look["skipped"] else ())):
            self._note(note)
        self._tell_state(look)
        for line in self._lines.feed(look["log"]):
            self._print(line)
            self._said = time.monotonic()
        self._show_bar()
        self._out.flush()

    def ended(self, run: Run) -> None:
        """The last line, if it has no end, and how the run stands."""
        self._finish_line()
        self.body["run"] = run_body(run)
        if not run.goes_on:
            self._note(f"run {run.id} {run.state}" + (f": {run.reason}" if run.reason else ""))

    def warned(self, warning: str) -> None:
        """Something that is no part of the log."""
        self.warnings.append(warning)
        self._note(f"warning: {warning}")

    def close(self) -> None:
        """Leave the terminal at the start of a line."""
        if self._terminal and self._bar:
            self._out.write("\n")
            self._bar = ""
        self._out.flush()

    def _tell_state(self, look: Json) -> None:
        state = f"{look.get('state')}: {look.get('reason')}" if look.get("reason") else ""
        if state and state != self._state:
            self._note(state)
        self._state = state

    def _note(self, text: str) -> None:
        if not self._as_json:
            self._wipe()
            self._err.write(f"orch: {shown(text, LONGEST)}\n")

    def _print(self, line: str, *, bar: bool = False) -> None:
        text = _clean(line)
        if self._as_json:
            said = {"schema": SCHEMA, "command": "logs", "id": self.run_id, "offset": self._offset}
            self._out.write(json.dumps({**said, "text": text, "bar": bar}) + "\n")
            return
        self._wipe()
        encoding = self._out.encoding or "utf-8"
        self._out.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")

    def _show_bar(self) -> None:
        """The unfinished line: redrawn in place on a terminal, else said every EVERY seconds."""
        bar = self._lines.unfinished
        if bar == self._bar:
            return
        if self._terminal:
            self._wipe()
            encoding = self._out.encoding or "utf-8"
            self._out.write(shown(_clean(bar), WIDTH).encode(encoding, "backslashreplace").decode(encoding))
            self._bar = bar
        elif bar and time.monotonic() - self._said >= EVERY:
            self._said = time.monotonic()
            self._print(bar, bar=True)
            self._bar = bar

    def _finish_line(self) -> None:
        bar = self._lines.unfinished
        if bar and (self._terminal or bar != self._bar):
            self._print(bar, bar=True)
        self._lines = Lines()

    def _wipe(self) -> None:
        """Take the bar off the terminal's last line."""
        if self._terminal and self._bar:
            self._out.write("\r\x1b[K")
            self._bar = ""


def _clean(line: str) -> str:
    return shown(_CONTROL.sub("", line).expandtabs(8), LONGEST)
