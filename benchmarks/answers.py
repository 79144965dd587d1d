"""How fast answers over time come: from a full ledger, and in the browser.

One function a row; each yields its goals. Everything is made up here (tests/made_up.py), in a folder of its own. The
last lines are one per goal: `name value goal ok|short`, in seconds and kilobytes. `--full` repeats more; `--only NAME`
runs one row.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "browser")]

import answers_live  # noqa: E402
import chromium  # noqa: E402
import made_up  # noqa: E402
from timing import Measure, Row, at_most, in_turn, told  # noqa: E402

RUNS = 10_000
CHECKPOINTS = 200
WINDOW = (1280, 900)


@dataclass(frozen=True)
class Bench:
    """Where a row may work, and how often it repeats."""

    folder: Path
    rounds: int

    def environment(self, home: Path) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), "ORCH_HOME": str(home)}

    def orch(self, home: Path, *words: str) -> None:
        """Type a command once; its output goes to a pipe, as a program would read it."""
        command = [sys.executable, "-c", "from orchestrator.cli import main; main()", *words]
        done = subprocess.run(
            command, env=self.environment(home), cwd=self.folder, capture_output=True, text=True, timeout=120
        )
        if done.returncode:
            sys.exit(f"orch {' '.join(words)}: exit {done.returncode}\n{done.stderr}")

    def seconds(self, what: str, run: Callable[[], object]) -> float:
        """Median time of a call; the first warms the page cache and does not count."""

        return statistics.median(in_turn({what: partial(Measure().seconds, run)}, self.rounds)[what])


def full_ledger(bench: Bench) -> Iterator[Row]:
    """`results` and `compare` with 10,000 runs in the ledger: wall clock of the whole command."""
    home = bench.folder / "full"
    made_up.fill_run(home, 2)
    made_up.fill_index(home, RUNS - 2, 50)
    bench.seconds("python -c pass", lambda: subprocess.run([sys.executable, "-c", "pass"], check=True))
    for name, words in (
        ("results_s", ("results",)),
        ("results_json_s", ("results", "--json")),
        ("results_csv_s", ("results", "--csv")),
        ("results_run_json_s", ("results", "run-7", "--json")),
        ("compare_s", ("compare", "latest", "baseline", "--run", "dflash")),
    ):
        typed = f"orch {' '.join(words)}"
        yield at_most(name, bench.seconds(typed, lambda words=words: bench.orch(home, *words)), 0.3)  # type: ignore[misc]


def report_page(bench: Bench) -> Iterator[Row]:
    """The report of 200 checkpoints: its size, and when it is interactive in Chromium."""
    home, file = bench.folder / "long", bench.folder / "report.html"
    made_up.fill_run(home, CHECKPOINTS)
    bench.seconds("orch report", lambda: bench.orch(home, "report", "--out", str(file)))
    yield at_most("report_kB", file.stat().st_size / 1000, 500)
    if chromium.where() is None:
        print("report_interactive_s is not measured: no Chromium here (apt install chromium)")
        return
    browser = chromium.Chromium(bench.folder / "profile")
    try:
        browser.show(*WINDOW)
        spent = []
        for turn in range(bench.rounds + 1):
            browser.open(file)
            if turn:
                spent.append(int(browser.evaluate("document.documentElement.dataset.ready")) / 1000)
    finally:
        browser.close()
    yield at_most("report_interactive_s", told("report in Chromium, until its script is done", spent), 1.0)


ROWS: dict[str, Callable[[Bench], Iterator[Row]]] = {"ledger": full_ledger, "report": report_page}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--full", action="store_true", help="31 rounds")
    parser.add_argument("--only", choices=(*sorted(ROWS), "living"), help="one row alone; living: answers_live.py's")
    options = parser.parse_args()
    goals = []
    for name, row in ROWS.items():
        if options.only in (None, name):
            with tempfile.TemporaryDirectory(prefix="orch-answers-") as folder:
                goals += list(row(Bench(Path(folder), 31 if options.full else options.rounds)))
    lines = [str(goal) for goal in goals]
    if options.only in (None, "living"):
        if os.geteuid() == 0 and sys.platform == "linux":
            with answers_live.bench_hosts(f"bl{os.getpid() % 1000}", "10.96.79") as bench:
                lines += answers_live.rows(bench, full=options.full)
        else:
            print("the rows on living hosts are not measured: they need root on Linux")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
