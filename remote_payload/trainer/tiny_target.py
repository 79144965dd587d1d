"""The target: a tiny Qwen3 taught the synthetic language on the spot, kept as an ordinary Hugging Face folder."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import torch
from refusal import Refused
from torch.nn import functional
from transformers import logging as transformers_logging
from transformers.models.qwen3 import Qwen3Config, Qwen3ForCausalLM

from remote_payload.trainer.language import VOCABULARY, Language

TEXT_LENGTH = 96
"""Tokens of a text that the target is taught on and goes on to write."""
LESSONS = 90
TEXTS_PER_LESSON = 8
RECIPE_FILE = "recipe.json"


def target_in(folder: Path, language: Language, device: torch.device) -> Qwen3ForCausalLM:
    """The target saved in `folder`, taught and saved there first if there is none.

    The folder appears whole (written beside, then renamed), so one that exists is complete. Weights are fp32.
    Raises Refused when the folder holds a target of another seed.
    """
    recipe = {"seed": language.seed, "lessons": LESSONS, "texts_per_lesson": TEXTS_PER_LESSON, "length": TEXT_LENGTH}
    transformers_logging.disable_progress_bar()
    if folder.exists():
        if json.loads((folder / RECIPE_FILE).read_text()) != recipe:
            raise Refused(f"{folder} was not made with {recipe}. Give the same --seed as before, or another --out")
        target = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device)
    else:
        target = taught_target(language, device)
        _save_whole(target, recipe, folder)
    return target.eval().requires_grad_(False)


def taught_target(language: Language, device: torch.device) -> Qwen3ForCausalLM:
    """A new target after LESSONS optimizer steps on fresh texts: about five seconds on one core."""
    torch.manual_seed(language.seed)
    target = Qwen3ForCausalLM(_tiny_config()).to(device)
    optimizer = torch.optim.AdamW(target.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=LESSONS, pct_start=0.1)
    chooser = random.Random(f"{language.seed} lessons")
    for _ in range(LESSONS):
        ids_NS = torch.tensor([language.text(TEXT_LENGTH, chooser) for _ in range(TEXTS_PER_LESSON)], device=device)
        logits_NSV = target(input_ids=ids_NS, use_cache=False).logits
        loss = functional.cross_entropy(logits_NSV[:, :-1].flatten(0, 1), ids_NS[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(target.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return target


def _tiny_config() -> Qwen3Config:
    """Four layers of width 64; heads x head size is not the width, as in the published Qwen3 models."""
    return Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=24,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        dtype="float32",
    )


def _save_whole(target: Qwen3ForCausalLM, recipe: dict[str, int], folder: Path) -> None:
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    target.generation_config.do_sample = False
    target.save_pretrained(unfinished)
    (unfinished / RECIPE_FILE).write_text(json.dumps(recipe) + "\n")
    unfinished.rename(folder)
