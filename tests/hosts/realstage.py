"""The small real world of story/world.py on real OpenSSH hosts."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from world import QUIET, Stage, World


@contextmanager
def real_stage(testhosts: Any, world: World, folder: Path, *, timeouts: str = "poll: 300ms") -> Iterator[Stage]:
    """`train` and `eval` furnished, and a project in `folder`; all of it is removed from the boxes afterwards."""
    homes = {name: testhosts.state / name / "fs" / "p" / "root" for name in ("train", "eval")}
    hosts = f"""\
hosts:
  train: {{ssh: root@train, roles: [train], python: {sys.executable}}}
  eval: {{ssh: root@eval, roles: [eval], python: {sys.executable}, workdir: ~/orch}}
timeouts: {{{timeouts}}}
runs:
  dflash: {{host: train, checkpoints: /root/checkpoints, log: /root/train.log, job: eval-dflash,
           process: {{match: train_dflash_pipeline.py}}}}
"""

    def start(words: list[str]) -> None:
        settings = " ".join(f"{key}={value}" for key, value in QUIET.items())
        command = " ".join(words)
        testhosts.sh("train", f"cd /root; {settings} setsid {command} </dev/null >/root/out.log 2>&1 &")

    built = Stage(
        world=world,
        folder=folder,
        hosts_yaml=hosts,
        train=homes["train"],
        evaluate=homes["eval"],
        train_inside="/root",
        evaluate_inside="/root",
        start=start,
    )
    built.furnish()
    yield built
    testhosts.sh("train", "[ ! -f /root/train.pid ] || kill $(cat /root/train.pid)", check=False)
    for home in homes.values():
        for name in ("checkpoints", "live", "eval", "orch", "train.log", "train.pid", "out.log"):
            path = home / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
