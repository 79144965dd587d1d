"""What orch does beside a training on a real NVIDIA GPU: the steps per second, and what a receipt sees of GPU clients.

Needs a machine with an NVIDIA GPU, nvidia-smi and a torch that can use it; boxes are folders of this machine. The real
trainer runs on the GPU; beside it: `orch status`, a whole `orch eval-latest` on the CPU, an evaluation that opens a GPU
all the same (it has to be stopped), and a guarded command that puts work of its own on the GPU (it has to be told).

Prints what was measured, then a line for each goal: name value goal ok|short.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "story")]

from timing import Row  # noqa: E402
from world import Stage, World, end, local_stage  # noqa: E402

BURN = """\
import sys, time, torch
matrix = torch.randn(4096, 4096, device="cuda")
print("on the GPU", flush=True)
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    matrix = (matrix @ matrix).tanh()
torch.cuda.synchronize()
"""
ROGUE_JOB = """\
harness: {{local: rogue, remote: {remote}}}
command: ["{{python}}", rogue.py, "60", "{{checkpoint}}", "{{result}}"]
result: {{file: eval_results.json}}
"""
ROGUE = """\
import os, time
held = os.open("/dev/nvidia0", os.O_RDWR)
time.sleep(60)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4, help="pairs of windows with and without orch (default 4)")
    parser.add_argument("--keep", type=Path, help="folder for nvidia-smi's own output and orch's documents")
    options = parser.parse_args()
    if shutil.which("nvidia-smi") is None:
        sys.exit("gpu.py needs a machine with an NVIDIA GPU: there is no nvidia-smi here")
    started: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="orch-gpu-") as name:
        folder = Path(name)
        try:
            stage = local_stage(World.make(folder), folder, started)
            stage.start_training("--device", "cuda")
            rows = measure(stage, options.rounds, options.keep)
        finally:
            end(started)
    for row in rows:
        print(row)


def measure(stage: Stage, rounds: int, keep: Path | None) -> list[Row]:
    """The rows of the last lines; see the module."""
    documents: dict[str, Any] = {"status": stage.json("status")}
    told = documents["status"]["hosts"][0]["gpus"]
    print("status tells:", json.dumps(told))
    ratio, spread = paces(stage, rounds)
    documents["eval-latest"] = stage.json("eval-latest", "--yes")
    receipt = documents["eval-latest"]["receipt"]
    print("evaluated beside it:", documents["eval-latest"]["result"]["headline"], receipt)
    documents["receipt"] = stage.json("receipt", "latest")
    documents["rogue"] = rogue_evaluation(stage)
    documents["guard"] = guarded(stage)
    if keep:
        keep.mkdir(parents=True, exist_ok=True)
        for what, document in documents.items():
            (keep / f"{what}.json").write_text(json.dumps(document, indent=1))
        for file, words in {"smi.txt": (), "smi.xml": ("-q", "-x")}.items():
            (keep / file).write_text(subprocess.run(["nvidia-smi", *words], capture_output=True, text=True).stdout)
    stopped = documents["rogue"].get("error", {}).get("message", "")
    came = [reason for reason in documents["guard"]["reasons"] if "GPU" in reason]
    print(f"steps/s beside status, of those without: pairs {spread}")
    return [
        Row("steps_beside_status", f"{ratio:.3f}", "0.97", ratio >= 0.97),
        Row("receipt_of_evaluation", receipt["verdict"], "undisturbed", receipt["verdict"] == "undisturbed"),
        Row("evaluation_on_gpu_stopped", "yes" if "nvidia" in stopped else "no", "yes", "nvidia" in stopped),
        Row("neighbour_on_gpu_told", "yes" if came else "no", "yes", bool(came)),
    ]


def paces(stage: Stage, rounds: int) -> tuple[float, str]:
    """Steps per second while `orch status` runs again and again, against those without it; alternating windows."""
    ratios = []
    for _ in range(rounds):
        alone = steps_during(stage, lambda: time.sleep(8))
        beside = steps_during(stage, lambda: again_and_again(stage, 8))
        ratios.append(beside / alone)
    return statistics.median(ratios), " ".join(f"{ratio:.3f}" for ratio in ratios)


def again_and_again(stage: Stage, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        stage.json("status")


def steps_during(stage: Stage, act: Callable[[], None]) -> float:
    """Steps per second from the log, over what `act` takes."""
    began, first = time.monotonic(), last_step(stage)
    act()
    return (last_step(stage) - first) / (time.monotonic() - began)


def last_step(stage: Stage) -> int:
    with (stage.train / "train.log").open("rb") as log:
        log.seek(max(0, os.fstat(log.fileno()).st_size - 4096))
        return int(re.findall(rb"step (\d+)", log.read())[-1])


def rogue_evaluation(stage: Stage) -> dict[str, Any]:
    """The document of an evaluation that opens the GPU's device file although every GPU is hidden from it."""
    (stage.project / "rogue").mkdir()
    (stage.project / "rogue" / "rogue.py").write_text(ROGUE)
    (stage.project / "jobs" / "rogue.yaml").write_text(ROGUE_JOB.format(remote=f"{stage.evaluate_inside}/rogue"))
    done = stage.orch("eval-latest", "--job", "rogue", "--yes", "--json")
    print(f"an evaluation that opens /dev/nvidia0: exit {done.returncode}: {done.stderr.strip()[-300:]}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def guarded(stage: Stage) -> dict[str, Any]:
    """The receipt around a command that works on the GPU for 15 s."""
    words = ("guard", "dflash", "--json", "--", sys.executable, "-c", BURN, "15")
    done = stage.orch(*words, timeout=200)
    print(f"guarded work on the GPU: exit {done.returncode}: {done.stderr.strip()[-400:]}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


if __name__ == "__main__":
    main()
