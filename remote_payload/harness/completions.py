"""The target and its greedy texts: in this process on the CPU, or from an SGLang server that takes and returns ids."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from files import read_json
from refusal import Refused
from target import Head, TargetEnds
from torch import Tensor

Complete = Callable[[Sequence[int]], tuple[int, ...]]
_PAUSES = (1, 2, 4)  # seconds between attempts


@dataclass(frozen=True, eq=False)
class Target:
    """A whole target in memory, float32, with sdpa attention."""

    model: Any
    stop_ids: frozenset[int]
    num_layers: int

    @torch.inference_mode()
    def complete(self, max_new_tokens: int, prompt_ids: Sequence[int]) -> tuple[int, ...]:
        """Greedy continuation, up to and with a stop token."""
        produced: list[int] = []
        pending, past = torch.tensor([list(prompt_ids)]), None
        while len(produced) < max_new_tokens:
            out = self.model(pending, past_key_values=past, use_cache=True, logits_to_keep=1)
            produced.append(int(out.logits[0, -1].argmax()))
            if produced[-1] in self.stop_ids:
                break
            pending, past = torch.tensor([produced[-1:]]), out.past_key_values
        return tuple(produced)

    @torch.inference_mode()
    def read(
        self, token_ids: Sequence[int], prompt_length: int, layer_ids: Sequence[int], ends: TargetEnds
    ) -> tuple[Tensor, tuple[int, ...]]:
        """Taps [S, K*H] of a text, and the target's choice for each token after the prompt, in one forward pass."""
        out = self.model.base_model(torch.tensor([list(token_ids)]), output_hidden_states=True, use_cache=False)
        taps_SK = torch.cat([out.hidden_states[layer + 1][0] for layer in layer_ids], dim=-1)
        predicting = out.last_hidden_state[0, prompt_length - 1 : len(token_ids) - 1]
        return taps_SK, tuple(Head(ends.head_VH).best(predicting, 1).ids_RK[:, 0].tolist())


def load_target(folder: Path) -> Target:
    """Load a target strictly. Raises `Refused` where weights are missing or the folder is no causal language model."""
    from transformers import AutoModelForCausalLM
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
    return Target(model.eval(), stop_ids_of(folder), model.config.get_text_config().num_hidden_layers)


def stop_ids_of(folder: Path) -> frozenset[int]:
    """Tokens that end a text: of generation_config.json, else of config.json."""
    for name in ("generation_config.json", "config.json"):
        if (folder / name).exists():
            config = read_json(folder / name)
            stop = config.get("eos_token_id", (config.get("text_config") or {}).get("eos_token_id"))
            if stop is not None:
                return frozenset(stop if isinstance(stop, list) else [stop])
    return frozenset()


def complete_by_server(url: str, stop_ids: frozenset[int], count: int, prompt_ids: Sequence[int]) -> tuple[int, ...]:
    """Greedy continuation by SGLang's /generate. Raises `Refused` when it doesn't answer, after some attempts."""
    request = generate_request(prompt_ids, count, stop_ids)
    pauses = iter(_PAUSES)
    while True:
        try:
            return generated_ids(_post(f"{url.rstrip('/')}/generate", request))
        except (OSError, json.JSONDecodeError) as error:
            pause = next(pauses, None)
            wrong_request = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if pause is None or wrong_request:
                raise Refused(f"{url}: no completion ({error}). Is an SGLang server running there?") from None
            time.sleep(pause)


def generate_request(prompt_ids: Sequence[int], count: int, stop_ids: frozenset[int]) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": count, "stop_token_ids": sorted(stop_ids)}
    return {"input_ids": list(prompt_ids), "sampling_params": sampling}


def generated_ids(answer: Any) -> tuple[int, ...]:
    """The generated token ids of a /generate answer."""
    ids = answer.get("output_ids") if isinstance(answer, dict) else None
    if not isinstance(ids, list) or not ids or not all(type(token) is int for token in ids):
        raise Refused("the server's answer holds no output_ids: is it SGLang's /generate?")
    return tuple(ids)


def _post(url: str, document: dict[str, Any]) -> Any:
    body = json.dumps(document).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as response:
        return json.load(response)
