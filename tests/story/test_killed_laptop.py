"""The laptop killed at every step of eval-latest: the same command afterwards ends in exactly one right result."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from small import Small, wait_until

MEASURE = """\
import hashlib, json, os, sys, time
time.sleep(0.5)
content = open(sys.argv[1], "rb").read()
json.dump({"score": len(content), "sha256": hashlib.sha256(content).hexdigest()}, open(sys.argv[2], "w"))
"""
SLICES = 12
OFTEN = ("shipping", "launched")
"""steps of the default tier"""


def slowly(small: Small) -> None:
    """A project whose shipment takes about two seconds."""
    small.furnish(MEASURE)
    inventory = small.folder / "hosts.yaml"
    inventory.write_text(inventory.read_text().replace("job: j}", "job: j, limit_rate: 200KB}"))


def some(small: Small, pattern: str) -> Callable[[], bool]:
    return lambda: any(small.evaluate.glob(pattern))


STEPS: dict[str, str] = {
    "syncing": "eval",
    "synced": "eval/.orch/synced.json",
    "shipping": "orch/checkpoints/.incoming-*/journal",
    "shipped": "orch/checkpoints/*/checkpoint.json",
    "launching": "orch/runs/.new-*",
    "launched": "orch/runs/[!.]*",
    "running": "orch/runs/*/log",
    "finished": "orch/runs/*/exit.json",
}


def one_right_result(small: Small) -> None:
    """What the command ends in when nothing is in its way any more."""
    document = small.json("eval-latest", "--yes")
    assert document["run"]["state"] == "succeeded"
    rows = small.json("runs")["runs"]
    assert [row["state"] for row in rows].count("succeeded") == 1, rows
    assert {row["state"] for row in rows} <= {"succeeded", "lost"}, rows
    (staged,) = small.evaluate.glob("orch/checkpoints/*/model.safetensors")
    assert document["result"]["headline"]["value"] == staged.stat().st_size
    results = list((small.folder / "state" / "runs").glob("*/*/orch-result.json"))
    assert len(results) == 1
    again = small.json("eval-latest")
    assert again["plan"]["actions"][0]["do"] == "nothing" and again["run"]["id"] == document["run"]["id"]


@pytest.mark.parametrize(
    "step", [step if step in OFTEN else pytest.param(step, marks=pytest.mark.full) for step in STEPS]
)
def test_a_laptop_killed_at_this_step_costs_nothing(small: Small, step: str) -> None:
    slowly(small)
    typed = small.start("eval-latest", "--yes")
    deadline = time.monotonic() + 60
    while typed.poll() is None and not any(small.evaluate.glob(STEPS[step])):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    typed.kill()
    typed.communicate()
    one_right_result(small)


@pytest.mark.full
def test_a_laptop_killed_while_it_collects_costs_nothing(small: Small) -> None:
    slowly(small)
    typed = small.start("eval-latest", "--yes")
    wait_until(lambda: any((small.folder / "state" / "runs").glob("*/*/spec.json")))
    typed.kill()
    typed.communicate()
    one_right_result(small)


@pytest.mark.full
@pytest.mark.parametrize("part", range(SLICES))
def test_a_laptop_killed_at_any_moment_costs_nothing(small: Small, part: int) -> None:
    slowly(small)
    typed = small.start("eval-latest", "--yes", "--json")
    time.sleep(0.2 + 5.0 * part / SLICES)
    typed.kill()
    out, _ = typed.communicate()
    assert not out or json.loads(out)
    one_right_result(small)
