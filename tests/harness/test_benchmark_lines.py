"""The benchmark's last lines are for programs: name value goal ok|short, a goal that can't be measured too."""

import re
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
LINE = re.compile(r"[\w.]+ \S+ \S+ (ok|short)")


def run(*options, **more):
    command = [sys.executable, *options]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, **more).stdout.splitlines()


def test_a_part_ends_with_its_goals():
    lines = run(BENCHMARKS / "harness.py", "--only", "tree")
    assert LINE.fullmatch(lines[-1]) and lines[-1].startswith("ddtree_build ") and not LINE.fullmatch(lines[-2])


WITHOUT_RIVAL = """
import sys
sys.modules["dflash"] = None
sys.path.insert(0, sys.argv[1])
import harness
from timing import Measure
print(*harness.loop_rows(Measure()), sep="\\n")
"""


def test_without_the_rival_its_goals_are_short_and_not_left_out():
    lines = run("-c", WITHOUT_RIVAL, str(BENCHMARKS))
    assert "the dflash package is not installed" in lines[0]
    assert lines[1:] == [
        "evaluation_cached_taps not_measured >=12x short",
        "evaluation_taps_in_run not_measured >=5x short",
        "evaluation_text_in_run not_measured >=5x short",
    ]
