"""`orch checkpoints` and `orch status` say the same about the newest file."""

from __future__ import annotations

import os

from small import Small


def test_a_young_unfinished_file_is_being_written_while_training_lives_and_torn_once_it_has_gone(small: Small) -> None:
    small.furnish(steps=(7, 8))
    whole = (small.train / "small" / "step_8" / "checkpoint.pt").read_bytes()
    (small.train / "small" / "step_9").mkdir()
    (small.train / "small" / "step_9" / "checkpoint.pt").write_bytes(whole[: len(whole) // 2])
    for pid, state in ((os.getpid(), "writing"), (2**22 - 1, "torn")):
        run = f"{{host: train, checkpoints: {small.train}/small, job: j, process: {{pid: {pid}}}}}"
        small.configure(f"hosts:\n{small.hosts}runs: {{r: {run}}}\n")
        listed = small.json("checkpoints")
        assert {row["step"]: row["state"] for row in listed["candidates"]}[9] == state
        assert listed["latest"]["step"] == 8
        (seen,) = small.json("status")["runs"]
        assert seen["latest"]["step"] == 8
        assert [row["path"] for row in seen["skipped"]] == ["step_9/checkpoint.pt"]
