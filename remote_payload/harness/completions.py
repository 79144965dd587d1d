"""Greedy texts of a target: by transformers in this process, for a target that fits its memory, or by a server.

Each finished text is kept at once, so an interrupted extraction asks for the missing ones only.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from files import read_json, write_json
from memory import anonymous_memory, size_text
from progress import Progress
from prompt_files import Prompt
from refusal import Refused
from safetensors_reader import TensorFiles
from servers import Server

Completed = Iterator[tuple[int, tuple[int, ...]]]
"""(index of the prompt, its continuation), in the order in which they are ready."""
_BATCH = 8


@dataclass(frozen=True, eq=False)
class Target:
    """A whole target in memory, float32, with sdpa attention."""

    model: Any
    stop_ids: frozenset[int]

    def complete(self, max_new_tokens: int, prompt_ids: Sequence[int]) -> tuple[int, ...]:
        """Greedy continuation, up to and with a stop token."""
        return self.complete_batch(max_new_tokens, [prompt_ids])[0]

    @torch.inference_mode()
    def complete_batch(self, max_new_tokens: int, prompts: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        """Greedy continuations of several prompts at once; shorter ones are padded on the left, under a mask."""
        from transformers import GenerationConfig

        longest = max(map(len, prompts))
        ids_BT = torch.zeros(len(prompts), longest, dtype=torch.long)
        mask_BT = torch.zeros_like(ids_BT)
        for row, prompt in enumerate(prompts):
            ids_BT[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask_BT[row, longest - len(prompt) :] = 1
        settings = GenerationConfig(  # nothing of the target's own: a penalty or sampling would not be greedy
            do_sample=False,
            max_new_tokens=max_new_tokens,
            eos_token_id=sorted(self.stop_ids) or None,
            pad_token_id=0,
        )
        out_BT = self.model.generate(ids_BT, attention_mask=mask_BT, generation_config=settings)
        return [self._up_to_stop(row.tolist()) for row in out_BT[:, longest:]]

    def _up_to_stop(self, ids: list[int]) -> tuple[int, ...]:
        first = next((place for place, token in enumerate(ids) if token in self.stop_ids), len(ids))
        return tuple(ids[: first + 1])


def load_target(folder: Path) -> Target:
    """Load a target strictly. Raises `Refused` where weights are missing or the folder is no causal language model."""
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation="sdpa",
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise Refused(f"{folder}: transformers can't load it ({first})") from None
    missing = sorted(info["missing_keys"]) + sorted(str(each) for each in info["mismatched_keys"])
    if missing:
        raise Refused(f"{folder}: {missing[0]} and {len(missing) - 1} more are missing: they would be random numbers")
    model.generation_config = GenerationConfig()
    return Target(model.eval(), stop_ids_of(folder))


def stop_ids_of(folder: Path) -> frozenset[int]:
    """Tokens that end a text: of generation_config.json, else of config.json."""
    for name in ("generation_config.json", "config.json"):
        if (folder / name).exists():
            config = read_json(folder / name)
            stop = config.get("eos_token_id", (config.get("text_config") or {}).get("eos_token_id"))
            if stop is not None:
                return frozenset(stop if isinstance(stop, list) else [stop])
    return frozenset()


def check_fits(files: TensorFiles, budget: int) -> None:
    """Refuse to generate in this process what it has no room for."""
    size = sum(4 * math.prod(place.shape) for place in files.places.values())
    if size + anonymous_memory() > budget:
        raise Refused(
            f"{files.folder}: in memory it takes {size_text(size)}, more than the {size_text(budget)} to be used. "
            "Take its texts from a server (--server URL)"
        )


class Texts:
    """The completions of a prompt set in a folder, one small file each."""

    def __init__(self, folder: Path, prompts: Sequence[Prompt]) -> None:
        self._folder, self._prompts = folder, prompts
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def missing(self) -> list[int]:
        return [index for index in range(len(self._prompts)) if not self._file(index).exists()]

    def take(self, completed: Completed, progress: Progress) -> None:
        """Keep completions as they come."""
        for index, ids in completed:
            write_json(self._file(index), {"produced": list(ids)})
            progress.step("complete", f"{self._prompts[index].id}: {len(ids)} tokens")

    def all(self) -> list[tuple[int, ...]]:
        """Prompt and continuation of every prompt."""
        produced = [read_json(self._file(index))["produced"] for index in range(len(self._prompts))]
        return [(*prompt.token_ids, *ids) for prompt, ids in zip(self._prompts, produced, strict=True)]

    def _file(self, index: int) -> Path:
        return self._folder / f"{index:05d}.json"


def by_target(folder: Path, prompts: Sequence[Prompt], wanted: Sequence[int], count: int) -> Completed:
    """Complete in this process, prompts of like length together."""
    target = load_target(folder)
    by_length = sorted(wanted, key=lambda index: len(prompts[index].token_ids))
    for first in range(0, len(by_length), _BATCH):
        batch = by_length[first : first + _BATCH]
        yield from zip(batch, target.complete_batch(count, [prompts[i].token_ids for i in batch]), strict=True)


def by_server(
    server: Server, stop_ids: frozenset[int], prompts: Sequence[Prompt], wanted: Sequence[int], count: int, at_once: int
) -> Completed:
    """Ask a server, a few prompts at once. The first refusal ends it; what came before is kept."""
    with ThreadPoolExecutor(at_once) as pool:
        asked = {pool.submit(server.complete, prompts[i].token_ids, count, stop_ids): i for i in wanted}
        try:
            for answer in as_completed(asked):
                yield asked[answer], answer.result()
        finally:
            pool.shutdown(cancel_futures=True)


def key_from(variable: str | None) -> str | None:
    """A server's key, from the environment."""
    if variable is None:
        return None
    if not os.environ.get(variable):
        raise Refused(f"the environment has no {variable} (--server-key-from)")
    return os.environ[variable]
