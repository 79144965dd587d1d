"""The trainer as a process: it learns, saves, logs, keeps its pace and stops cleanly."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest
import torch
from drafter import Drafter, DrafterConfig
from transformers.models.qwen3 import Qwen3ForCausalLM

from remote_payload.trainer.greedy_text import GreedyText, greedy_text
from remote_payload.trainer.language import MASK_TOKEN, Language

SCRIPT = Path(__file__).resolve().parents[2] / "remote_payload" / "trainer" / "train_dflash_pipeline.py"
PROGRESS = re.compile(r"step (\d+) epoch (\d+\.\d\d) loss (\d+\.\d\d) (\d+\.\d)K tok/s")
TEXTS = 64
TOKENS_PER_STEP = 4 * 96


def trainer(*arguments: object) -> list[str]:
    return [sys.executable, str(SCRIPT), *map(str, arguments)]


def progress(lines: str) -> list[tuple[int, float, float]]:
    """(step, loss, tokens per second) of every line; a line of another form fails the test."""
    found = [PROGRESS.fullmatch(line) for line in lines.splitlines()]
    assert all(found), lines
    return [(int(match[1]), float(match[3]), 1000 * float(match[4])) for match in found if match]


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory) -> Path:
    """A real training of 125 steps, started from another folder; its stdout is kept in the file `stdout`."""
    root = tmp_path_factory.mktemp("trainer")
    out = root / "run"
    command = trainer("--out", out, "--steps", 125, "--save-every", 25, "--texts", TEXTS, "--log", root / "train.log")
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    (root / "stdout").write_text(done.stdout)
    return out


def load(out: Path, step: int) -> dict:
    return torch.load(out / f"step_{step}" / "checkpoint.pt", weights_only=True)


@pytest.fixture
def one_thread():
    """Many threads on a busy machine wait for each other longer than these small matrices take."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@torch.no_grad()
def acceptance_length(checkpoint: dict, target: Qwen3ForCausalLM, texts: GreedyText) -> float:
    """Tokens per round of a plain greedy walk, the target's own token included: the mean over the texts."""
    config = DrafterConfig.from_hf(checkpoint["args"]["drafter"])
    drafter = Drafter(config)
    drafter.load_state_dict(checkpoint["model"])
    walks = zip(texts.ids_NS, texts.taps_NSK, strict=True)
    return fmean(fmean(rounds(drafter, target, ids_S, taps_SK, texts.prompt_length)) for ids_S, taps_SK in walks)


def rounds(drafter: Drafter, target: Qwen3ForCausalLM, ids_S, taps_SK, anchor: int) -> list[int]:
    config, lengths = drafter.config, []
    while anchor + config.block_size <= len(ids_S):
        block = torch.full((1, config.block_size), config.mask_token_id)
        block[0, 0] = ids_S[anchor]
        embeds = target.get_input_embeddings()(block)
        hidden = drafter(drafter.context(taps_SK[:anchor]), embeds, torch.tensor([anchor]))
        drafts = target.lm_head(hidden[0, 1:]).argmax(-1)
        right = drafts == ids_S[anchor + 1 : anchor + config.block_size]
        lengths.append(int(right.int().cumprod(0).sum()) + 1)
        anchor += lengths[-1]
    return lengths


def test_a_later_checkpoint_drafts_longer_runs_on_held_out_prompts_than_an_early_one(finished_run, one_thread):
    target = Qwen3ForCausalLM.from_pretrained(finished_run / "target").eval()
    early, late = load(finished_run, 25), load(finished_run, 125)
    layer_ids = early["args"]["drafter"]["dflash_config"]["target_layer_ids"]
    prompts = [prompt[:16] for prompt in Language.from_seed(0).held_out_prompts(8, training_prompts=TEXTS)]
    texts = greedy_text(target, prompts, length=96, layer_ids=layer_ids)
    before, after = (acceptance_length(saved, target, texts) for saved in (early, late))
    assert before < 1.4
    assert after > before + 0.6


def test_the_loss_falls_and_the_log_file_holds_the_lines_of_stdout(finished_run):
    printed = (finished_run.parent / "stdout").read_text()
    assert (finished_run.parent / "train.log").read_text() == printed + "training finished after step 125\n"
    steps, losses, _ = zip(*progress(printed), strict=True)
    assert steps == tuple(range(10, 121, 10))
    assert losses[-1] < 0.7 * losses[0]


def test_a_checkpoint_carries_weights_optimizer_step_and_the_drafters_configuration(finished_run):
    saved = load(finished_run, 50)
    assert set(saved) == {"model", "optimizer", "step", "args"}
    assert saved["step"] == 50
    assert saved["args"]["texts"] == TEXTS
    assert saved["args"]["drafter"] == json.loads((finished_run / "drafter.json").read_text())
    config = DrafterConfig.from_hf(saved["args"]["drafter"])
    assert {name: tuple(tensor.shape) for name, tensor in saved["model"].items()} == config.state_shapes()
    assert set(saved["optimizer"]) == {"state", "param_groups"}


def test_a_stopped_run_leaves_whole_files_only_keeps_the_newest_and_paced_steadily(finished_run, tmp_path):
    """Also: numbering starts where asked, the target made before is used again, the pidfile names the process."""
    out, pidfile = tmp_path / "run", tmp_path / "pid"
    out.mkdir()
    (out / "target").symlink_to(finished_run / "target")
    pace = ("--pace", 10, "--log-every", 1, "--save-every", 5, "--keep", 2, "--first-step", 4000, "--texts", 4)
    command = trainer("--out", out, "--pidfile", pidfile, *pace)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if len(lines) == 23:
                assert pidfile.read_text() == f"{process.pid}\n"
                process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0, process.stderr.read()
    assert not pidfile.exists()
    steps, _, rates = zip(*progress("".join(lines)), strict=True)
    assert steps == tuple(range(4000, 4000 + len(steps)))
    assert len(steps) <= 24
    assert sum(TOKENS_PER_STEP / rate for rate in rates[1:21]) > 1.8, "20 steps at 10 steps a second take 2 s"
    newest = steps[-1] - steps[-1] % 5
    assert {folder.name for folder in out.glob("step_*")} == {f"step_{newest - 5}", f"step_{newest}"}
    assert [load(out, step)["step"] for step in (newest - 5, newest)] == [newest - 5, newest]


def test_a_stop_during_preparation_ends_at_once_and_leaves_no_half_target(tmp_path):
    command = trainer("--out", tmp_path / "run", "--pidfile", tmp_path / "pid")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert "preparing" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert not (tmp_path / "pid").exists()
    assert not (tmp_path / "run" / "target").exists()


def test_a_target_of_another_seed_is_refused(finished_run):
    done = subprocess.run(
        trainer("--out", finished_run, "--seed", 1, "--steps", 1), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "--out" in done.stderr
    assert "Traceback" not in done.stderr


def test_held_out_prompts_are_new_repeatable_and_written_without_loading_torch(tmp_path):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *trainer("--write-prompts", tmp_path / "a.jsonl", "--n", 40)[1:]],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0
    assert not re.search(r"\b(torch|transformers)\b", done.stderr)
    subprocess.run(trainer("--write-prompts", tmp_path / "b.jsonl", "--n", 12), check=True, timeout=30)
    many, few = ((tmp_path / name).read_text().splitlines() for name in ("a.jsonl", "b.jsonl"))
    assert many[:12] == few
    prompts = [json.loads(line) for line in many]
    assert all(set(prompt) == {"id", "data_set", "token_ids"} for prompt in prompts)
    assert len({prompt["id"] for prompt in prompts}) == 40
    known = {tuple(prompt) for prompt in Language.from_seed(0).training_prompts(256)}
    assert not any(tuple(prompt["token_ids"][:16]) in known for prompt in prompts)
    assert not any(MASK_TOKEN in prompt["token_ids"] for prompt in prompts)
