"""Ships the latest checkpoint from `train` to `eval` again and again, as eval-latest does: part of harm.py.

python ship_again.py direct|tunnel|relay ROOT TIMES
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from orchestrator import routes  # noqa: E402
from orchestrator.actions import observation, staging  # noqa: E402
from orchestrator.model import Host, Job, ProcessRule, Timeouts, TrainingRun, TransferName  # noqa: E402
from orchestrator.ssh.choose import Connections  # noqa: E402

JOB = Job(
    name="bench", path=Path("bench.yaml"), harness_local=Path(), harness_remote="eval", command=("true",), ship="whole"
)
TRAIN = Host(name="train", ssh="root@train", roles=frozenset({"train"}), python=sys.executable)
EVAL = Host(name="eval", ssh="root@eval", roles=frozenset({"eval"}), python=sys.executable)
T = Timeouts()


def ship_once(transfer: TransferName, run: TrainingRun) -> None:
    with Connections(T) as connections:
        source = staging.End(connection=connections.to(TRAIN), host=TRAIN, role="train")
        target = staging.End(connection=connections.to(EVAL), host=EVAL, role="eval")
        seen = observation.observe(source.connection, TRAIN, role="train", timeouts=T, runs=[run]).runs[run.name]
        if seen.scan is None or seen.scan.latest is None:
            sys.exit(f"nothing to ship: {seen}")
        choice, why_not = routes.choose(transfer, staging.ways(source, target, transfer, T), None)
        if not choice:
            sys.exit(f"no way: {why_not}")
        began = time.monotonic()
        account = staging.ship(
            seen.scan.latest,
            JOB,
            source,
            target,
            T,
            lambda done, total: None,
            print,
            choice=choice,
            layout=None,
            training=seen.neighbour,
        )
        print(f"{account['bytes']} B in {time.monotonic() - began:.1f} s, {account['pace']}", flush=True)
        target.connection.run(["rm", "-rf", "orch"])


def main() -> None:
    transfer, root, times = sys.argv[1:]
    if transfer not in ("direct", "tunnel", "relay"):
        sys.exit(__doc__)
    run = TrainingRun(name="dflash", hosts=("train",), checkpoints=root, process=ProcessRule(pidfile="/root/train.pid"))
    for _ in range(int(times)):
        ship_once(transfer, run)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
