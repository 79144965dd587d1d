"""Prompts from a JSONL file, as token ids of the target.

A line is an object with `id`, optionally `data_set` (or `dataset`), and one of `prompt` (text), `messages` (a chat) or
`token_ids`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from files import digest_of
from refusal import Refused

_VOCABULARIES = ("tokenizer.json", "vocab.json", "tokenizer.model")


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the target is asked, already as its token ids."""

    id: str
    data_set: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Prompts and how text became tokens: template `chat`, `raw` or `ids`."""

    prompts: tuple[Prompt, ...]
    template: str
    template_digest: str | None

    @property
    def digest(self) -> str:
        return digest_of([[each.id, each.data_set, list(each.token_ids)] for each in self.prompts])


def read_prompts(file: Path, target: Path, template: str | None, thinking: bool) -> PromptSet:
    """Read and tokenise. `template` None takes the tokenizer's chat template where it has one.

    Raises `Refused`, naming file and line, for what is no prompt, and where text needs a tokenizer that isn't there.
    """
    lines = _lines(file)
    if all("token_ids" in line for line in lines):
        tokenizer, used, digest = None, "ids", None
    else:
        tokenizer = _tokenizer(target)
        chat = getattr(tokenizer, "chat_template", None)
        used = template or ("chat" if chat else "raw")
        if used == "chat" and not chat:
            raise Refused(f"{target}: its tokenizer has no chat template. Use --template raw")
        digest = digest_of(chat) if used == "chat" else None
    prompts = tuple(
        Prompt(str(line["id"]), _data_set(line), _token_ids(line, tokenizer, used, thinking)) for line in lines
    )
    empty = [prompt.id for prompt in prompts if not prompt.token_ids]
    if empty:
        raise Refused(f"{file}: prompt {empty[0]} has no tokens")
    return PromptSet(prompts, used, digest)


def _lines(file: Path) -> list[dict[str, Any]]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{file}: not readable ({error})") from None
    lines = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            lines.append(_line(line, f"{file}:{number}"))
    ids = [str(line["id"]) for line in lines]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if not lines or twice:
        raise Refused(f"{file}: " + (f"two prompts have the id {twice[0]}" if twice else "holds no prompts"))
    return lines


def _line(text: str, where: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except json.JSONDecodeError as error:
        raise Refused(f"{where}: not JSON ({error})") from None
    if not isinstance(line, dict) or "id" not in line:
        raise Refused(f"{where}: expected an object with an id")
    kinds = {"prompt": str, "messages": list, "token_ids": list}
    given = [key for key in kinds if key in line]
    if len(given) != 1 or not isinstance(line[given[0]], kinds[given[0]]):
        raise Refused(f"{where}: expected one of prompt (text), messages (a list) or token_ids (a list)")
    if given == ["token_ids"] and not all(type(token) is int and token >= 0 for token in line["token_ids"]):
        raise Refused(f"{where}: token_ids holds something that is no token id")
    return line


def _data_set(line: Mapping[str, Any]) -> str:
    return str(line.get("data_set", line.get("dataset", "default")))


def _tokenizer(target: Path) -> Any:
    from transformers import AutoTokenizer

    if not any((target / name).exists() for name in _VOCABULARIES):  # the library would make up an empty one
        raise Refused(f"{target}: has no tokenizer ({', '.join(_VOCABULARIES)}). Give prompts as token_ids")
    try:
        return AutoTokenizer.from_pretrained(target, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # the library raises many kinds for one reason: no usable tokenizer
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise Refused(f"{target}: its tokenizer can't be loaded ({first}). Give prompts as token_ids") from None


def _token_ids(line: Mapping[str, Any], tokenizer: Any, template: str, thinking: bool) -> tuple[int, ...]:
    if "token_ids" in line:
        return tuple(line["token_ids"])
    messages = line.get("messages") or [{"role": "user", "content": line["prompt"]}]
    if template == "chat":
        text = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=thinking
        )
        return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
    if "messages" in line:
        raise Refused(f"prompt {line['id']}: messages need a chat template (--template chat)")
    return tuple(tokenizer(line["prompt"])["input_ids"])
