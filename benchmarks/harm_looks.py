"""What a training feels of `status` and `checkpoints`, and what of it is the connection's own: part of harm.py."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from neighbours import Commands, Pairs, Training, alternate

if TYPE_CHECKING:
    from harm import Bench


def while_looking(bench: Bench, training: Training) -> dict[str, Pairs]:
    """Both commands one after the other; as many `ssh HOST true`, which is what no agent can lower; and both again over
    a connection that the user keeps open."""

    def looks() -> None:
        bench.orch("status", "--json")
        bench.orch("checkpoints", "--json")

    def measured(commands: Commands) -> Pairs:
        pairs = alternate(training, commands, *bench.looks)
        commands.stop()
        if commands.failed or not commands.count:
            sys.exit(commands.failed or f"{commands.name}: none came to its end")
        print(f"  {commands.count} times, one in {commands.seconds / commands.count:.2f} s", flush=True)
        return pairs

    both = Commands("status, checkpoints", bench.hosts, looks)
    found = {"looks": measured(both)}
    if bench.goals:
        return found
    every = both.seconds / both.count / 2
    found["bare"] = measured(Commands("ssh HOST true, as often", bench.hosts, lambda: bare(bench, every)))
    with kept_connection(bench):
        found["kept"] = measured(Commands("both, over a kept connection", bench.hosts, looks))
    more = found["looks"].beside - found["bare"].beside
    print(f"status and checkpoints cost the box {more:.4f} of a core more than as many `ssh HOST true`", flush=True)
    return found


def bare(bench: Bench, seconds: float) -> None:
    """What a look can't do without, once in so many seconds: a connection, a shell, and nothing in it."""
    began = time.monotonic()
    subprocess.run(bench.on_train("true"), check=True, stdin=subprocess.DEVNULL)
    time.sleep(max(0.0, seconds - (time.monotonic() - began)))


@contextmanager
def kept_connection(bench: Bench) -> Iterator[None]:
    """A connection of the user's own to the training box (ControlMaster), which orch then uses."""
    plain = bench.hosts.config
    config, socket = plain.with_name("config-kept"), plain.with_name("kept-%C")
    config.write_text(f"ControlMaster auto\nControlPath {socket}\nControlPersist 600\n{plain.read_text()}")
    ssh = ["ssh", "-F", str(config)]
    subprocess.run([*ssh, "-fN", "root@train"], check=True, stdin=subprocess.DEVNULL)
    os.environ["ORCH_SSH_CONFIG"] = str(config)
    try:
        yield
    finally:
        os.environ["ORCH_SSH_CONFIG"] = str(plain)
        subprocess.run([*ssh, "-O", "exit", "root@train"], check=False, capture_output=True)
