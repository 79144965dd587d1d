"""Ledgers full of made-up DFlash results: the shapes are the harness's, the numbers a learning curve with noise."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from orchestrator import records
from orchestrator.actions.ledger import Ledger
from orchestrator.model import Entry, Receipt, Result, ResultRule
from orchestrator.workflows import reading

RULE = ResultRule(headline="acceptance_length.walk_macro", items="prompts", item_value="acceptance_length")
BASELINE = 3.1
BLOCK = 15
SCRIPTS = {
    "eval_drafter.py": b"import torch\n\n\ndef main():\n    measure(budgets=(16, 64))\n",
    "acceptance.py": b"def length(accepted):\n    return accepted + 1\n",
}
NEWER_SCRIPTS = {**SCRIPTS, "eval_drafter.py": SCRIPTS["eval_drafter.py"].replace(b"(16, 64)", b"(16, 64, 256)")}


def digest(name: object) -> str:
    """A digest that is always the same for a name."""
    return hashlib.sha256(str(name).encode()).hexdigest()


def drafter(level: float, prompts: int, generator: random.Random, spread: Sequence[float]) -> dict[str, Any]:
    """One drafter's part of eval_results.json; `spread` is how much easier or harder each prompt is than others."""
    right = 1 - 1 / level
    conditional = [min(0.97, right * (1 - 0.012 * k)) for k in range(BLOCK)]
    lengths = [level * (1 + spread[index]) + generator.gauss(0, 0.12) for index in range(prompts)]
    return {
        "acceptance_length": {"walk_macro": sum(lengths) / prompts, "pooled": level, "all_anchor": level},
        "positions": [
            {
                "k": k + 1,
                "marginal": conditional[k] * 0.93**k,
                "survival": math.prod(conditional[: k + 1]),
                "conditional": conditional[k],
                "n": 900 - 10 * k,
            }
            for k in range(BLOCK)
        ],
        "ddtree": {
            str(budget): {"walk_macro": level * (1 + gain), "pooled": level * (1 + gain)}
            for budget, gain in ((16, 0.17), (64, 0.28), (256, 0.36))
        },
        "prompts": [
            {"id": f"prompt-{index}", "acceptance_length": length, "rounds": [3, 4, 2], "censored": 1}
            for index, length in enumerate(lengths)
        ],
    }


def result_files(step: int, level: float, scripts: dict[str, bytes], *, prompts: int, seed: int) -> dict[str, bytes]:
    """A finished run's small files, as they come home."""
    generator = random.Random(seed)
    spread = [random.Random(index).gauss(0, 0.18) for index in range(prompts)]
    ours, base = drafter(level, prompts, generator, spread), drafter(BASELINE, prompts, random.Random(0), spread)
    document = {"schema": 1, "step": step, **ours, "near_ties": 0, "baseline": base}
    document["provenance"] = {"versions": {"torch": "2.13.0", "transformers": "5.15.0"}}
    files = [
        {"path": path, "mode": 0o644, "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        for path, content in scripts.items()
    ]
    ended = datetime(2026, 11, 1, tzinfo=timezone.utc) + timedelta(minutes=40 * step // 500)
    identity = digest(("checkpoint", step, seed))
    digests = {"checkpoint": identity, "harness": digest(files), "job": digest("job"), "data": digest("data")}
    spec = {
        "schema": 1,
        "id": f"{step}-{identity[:8]}",
        "job": "eval-dflash",
        "run": "dflash",
        "step": step,
        "digests": digests,
        "result": RULE.file,
        "rule": {"file": RULE.file, "headline": RULE.headline, "items": RULE.items, "item_value": RULE.item_value},
        "origin": "ct200:/workspace/checkpoints",
        "source": None,
        "windows": [],
        "orch": "0.1.0",
    }
    end = {"schema": 1, "state": "succeeded", "exit_code": 0, "ended_at": ended.isoformat().replace("+00:00", "Z")}
    return {
        "spec.json": json.dumps(spec).encode(),
        "harness.json": json.dumps({"schema": 1, "files": files}).encode(),
        "exit.json": json.dumps(end).encode(),
        RULE.file: json.dumps(document).encode(),
    }


def add(ledger: Ledger, files: dict[str, bytes], *, receipt: str = "undisturbed", host: str = "ct129") -> Result:
    """Bring a run home as `orch eval-latest` would."""
    run_id = json.loads(files["spec.json"])["id"]
    folder = ledger.keep_files(host, run_id, files)
    said = "same process 42639 since 2026-11-01T00:00:00Z" if receipt == "undisturbed" else "process 42639 is gone"
    made = Receipt(verdict=receipt, reasons=(said,), windows=(), limits=())  # type: ignore[arg-type]
    result = reading.result_of(files.get, host, folder, made)
    ledger.add(result)
    return result


def learning(step: int, last: int) -> float:
    """Where a learning curve stands."""
    return 1.6 + 2.1 * (1 - math.exp(-3.2 * step / last))


def fill_run(home: Path, checkpoints: int, *, prompts: int = 80, change_at: float = 0.15) -> None:
    """A training run of so many checkpoints, 500 steps apart; its harness changes once on the way."""
    last = 500 * checkpoints
    with Ledger(home) as ledger:
        for scripts in (SCRIPTS, NEWER_SCRIPTS):
            for content in scripts.values():
                ledger.keep_script(hashlib.sha256(content).hexdigest(), content)
        for index in range(checkpoints):
            step = 500 * (index + 1)
            level = learning(step, last) + random.Random(index).gauss(0, 0.025)
            scripts = SCRIPTS if index < change_at * checkpoints else NEWER_SCRIPTS
            receipt = {checkpoints // 2: "ended", checkpoints // 3: "not_observed"}.get(index, "undisturbed")
            add(ledger, result_files(step, level, scripts, prompts=prompts, seed=index), receipt=receipt)


def fill_index(home: Path, results: int, runs: int) -> None:
    """Many more lines in the index, of other training runs, without folders."""
    entries = []
    for index in range(results):
        number, run = divmod(index, runs)
        step = 500 * (number + 1)
        value = learning(step, 500 * (results // runs)) + random.Random(index).gauss(0, 0.03)
        entries.append(
            Entry(
                id=f"{step}-{digest(index)[:8]}",
                host="ct129",
                run=f"run-{run}",
                job="eval-dflash",
                origin=f"ct200:/runs/{run}",
                step=step,
                ended_at=f"2026-10-{1 + number % 28:02d}T00:00:00Z",
                headline_name=str(RULE.headline),
                better="higher",
                value=value,
                low=value - 0.1,
                high=value + 0.1,
                base_value=BASELINE,
                base_low=BASELINE - 0.1,
                base_high=BASELINE + 0.1,
                verdict="no_difference",
                receipt="undisturbed",
                checkpoint=digest(index),
                harness=digest("h"),
                job_digest=digest("j"),
                data=digest("d"),
            )
        )
    with Ledger(home) as ledger:
        kept = [records.entry_of(records.read(folder)) for folder in ledger.run_folders()]
        ledger.replace_all([*kept, *entries])
