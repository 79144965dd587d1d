"""Where a name counts in a command line, and what is shown of one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_payload.agent.command_line import (
    ARGUMENT,
    PART,
    SCRIPT,
    SHOWN_COMMAND,
    WHOLE,
    how_named,
    is_launcher,
    shown,
)

NAME = "train_dflash_pipeline.py"


@pytest.mark.parametrize(
    ("command", "match", "expected"),
    [
        (f"python {NAME} --lr 1", NAME, WHOLE),
        (f"python3.11 -u -X dev /data/dflash/{NAME}", NAME, WHOLE),
        (f"/workspace/venv/bin/python -W ignore {NAME}", f"{NAME}", WHOLE),
        (f"python {NAME} --config a.yaml", f"{NAME} --config a.yaml", WHOLE),
        ("python -m dflash.train --lr 1", "dflash.train", WHOLE),
        ("./llm.c/train_gpt2cu -i data", "train_gpt2cu", WHOLE),
        (f"python /usr/bin/torchrun --nproc_per_node 8 {NAME} --lr 1", NAME, WHOLE),
        (f"python -m torch.distributed.run --nproc_per_node 8 {NAME}", NAME, WHOLE),
        (f"python /usr/bin/accelerate launch {NAME}", NAME, WHOLE),
        (f"python {NAME}", "dflash", PART),
        (f"python pre{NAME}", NAME, PART),
        (f"python {NAME}.bak", NAME, PART),
        (f"bash {NAME}", NAME, SCRIPT),
        ("bash ./train.sh", "train.sh", SCRIPT),
        ("python main.py --config dflash.yaml", "dflash.yaml", ARGUMENT),
        (f"python analyse.py {NAME}", NAME, None),
        (f"python -c import_{NAME}", NAME, None),
        (f"bash -c python_{NAME}", NAME, None),
        (f"bash -lc {NAME}", NAME, None),
        (f"tail -f {NAME}.log", NAME, None),
        (f"vim {NAME}", NAME, None),
        (f"grep {NAME}", NAME, None),
        (f"tmux new -d {NAME}", NAME, None),
        (f"ssh box python {NAME}", NAME, None),
        (f"sudo python {NAME}", NAME, None),
        (f"timeout 5h python {NAME}", NAME, None),
        ("python /usr/bin/orch eval-latest dflash", "dflash", None),
        (f"python {NAME}", "other.py", None),
    ],
)
def test_a_name_counts_where_it_names_the_program(command, match, expected):
    argv = command.split(" ")
    assert how_named(argv, argv[0].rsplit("/", 1)[-1], match) == expected


def test_an_executable_unmasks_a_process_that_calls_itself_otherwise():
    assert how_named(["harmless", NAME], "tail", NAME) is None
    assert how_named(["ray::Trainer.train"], "python3.11", "Trainer") == PART


def test_launchers_are_known_by_script_module_and_program():
    assert is_launcher(["python", "/usr/bin/torchrun", "x.py"], "python3.11")
    assert is_launcher(["python", "-m", "deepspeed.launcher.launch"], "python3.11")
    assert is_launcher(["srun", "python", "x.py"], "srun")
    assert not is_launcher(["python", "sweep.py", "x.py"], "python3.11")


@given(st.lists(st.text(max_size=20), max_size=8), st.text(max_size=12), st.text(min_size=1, max_size=12))
def test_any_command_line_is_judged_and_shown(argv, program, match):
    assert how_named(argv, program, match) in (None, WHOLE, PART, SCRIPT, ARGUMENT)
    assert len(shown(argv)) <= SHOWN_COMMAND


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python t.py --api-key s3cret --lr 1", "python t.py --api-key *** --lr 1"),
        ("python t.py --hf_token=s3cret", "python t.py --hf_token=***"),
        ("env WANDB_API_KEY=s3cret python t.py", "env WANDB_API_KEY=*** python t.py"),
        ("python t.py --url https://me:s3cret@host/x", "python t.py --url https://***@host/x"),
        ("python t.py hf_abcdefghijklmnopqrstuv", "python t.py ***"),
        ("python t.py --tokenizer qwen --max_tokens 5", "python t.py --tokenizer qwen --max_tokens 5"),
        ("python t.py --password --lr 1", "python t.py --password --lr 1"),
    ],
)
def test_secrets_in_a_command_line_are_masked(command, expected):
    assert shown(command.split(" ")) == expected


def test_a_long_command_line_is_cut():
    assert shown(["x" * 10_000]).endswith("…")
