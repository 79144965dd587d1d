"""Greedy texts from a server that takes and returns token ids: SGLang's /generate, or /v1/completions of any engine."""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from refusal import Refused

APIS = ("generate", "completions")
_PAUSES = (1, 2, 4, 8)  # seconds between attempts
_TOKEN = re.compile(r"token_id:(\d+)")


@dataclass(frozen=True, slots=True)
class Server:
    """Where completions come from. `key` is sent as a bearer token; it is in no message and no file."""

    url: str
    api: str = "generate"
    model: str | None = None
    key: str | None = None

    def complete(self, prompt_ids: Sequence[int], count: int, stop_ids: frozenset[int]) -> tuple[int, ...]:
        """A greedy continuation up to and with a stop token. Raises `Refused` when none comes, after some attempts."""
        if self.api == "generate":
            ids = generated_ids(self._post("/generate", generate_request(prompt_ids, count, stop_ids)))
        else:
            request = completions_request(prompt_ids, count, stop_ids, self.model or self.served_model())
            ids = completed_ids(self._post("/v1/completions", request))
        return _up_to_stop(ids[:count], stop_ids)

    def facts(self) -> dict[str, Any]:
        """What the server says about itself, as far as it does."""
        said = {**self._get("/model_info"), **self._get("/server_info")}
        version = said.get("version") or self._get("/version").get("version")
        facts = {"url": self.url, "api": self.api, "version": version, "model": said.get("model_path") or self.model}
        return facts | {key: said[key] for key in ("dtype", "attention_backend") if isinstance(said.get(key), str)}

    def served_model(self) -> str:
        """The name of the first model that the server lists."""
        models = self._get("/v1/models").get("data")
        if not (isinstance(models, list) and models and isinstance(models[0], dict) and models[0].get("id")):
            raise Refused(f"{self.url}/v1/models: lists no model. Name it with --server-model")
        return str(models[0]["id"])

    def _get(self, path: str) -> dict[str, Any]:
        try:
            answer = self._open(urllib.request.Request(self.url.rstrip("/") + path, headers=self._headers()), 30)
        except (OSError, http.client.HTTPException, ValueError):
            return {}
        return answer if isinstance(answer, dict) else {}

    def _post(self, path: str, document: dict[str, Any]) -> Any:
        url = self.url.rstrip("/") + path
        request = urllib.request.Request(url, json.dumps(document).encode(), self._headers())
        pauses = iter(_PAUSES)
        while True:
            try:
                return self._open(request, 3600)
            except (OSError, http.client.HTTPException, ValueError) as error:
                pause = next(pauses, None)
                if pause is None or _is_final(error):
                    raise Refused(f"{self.url}: no completion ({_said(error)}). Is a server running there?") from None
                time.sleep(pause)

    def _open(self, request: urllib.request.Request, timeout: float) -> Any:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return json.load(response)

    def _headers(self) -> dict[str, str]:
        return {"Content-Type": "application/json", **({"Authorization": f"Bearer {self.key}"} if self.key else {})}


def server_at(url: str, api: str, model: str | None, key: str | None) -> Server:
    """Refuses an address that isn't http, or holds a password: addresses are printed and kept."""
    parts = urllib.parse.urlsplit(url)
    if parts.username or parts.password:
        raise Refused("--server: the address holds a user or password. Give a key with --server-key-from")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Refused(f"--server {url}: expected an address like http://127.0.0.1:30000")
    return Server(url, api, model, key)


def generate_request(prompt_ids: Sequence[int], count: int, stop_ids: frozenset[int]) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": count, "stop_token_ids": sorted(stop_ids)}
    return {"input_ids": list(prompt_ids), "sampling_params": sampling}


def completions_request(prompt_ids: Sequence[int], count: int, stop_ids: frozenset[int], model: str) -> dict[str, Any]:
    """Asks for ids in every way that engines know; each ignores the others' ways."""
    request = {"model": model, "prompt": list(prompt_ids), "max_tokens": count, "temperature": 0}
    ways = {"return_token_ids": True, "return_tokens_as_token_ids": True, "logprobs": 1, "return_tokens": True}
    return {**request, **ways, "stop_token_ids": sorted(stop_ids)}


def generated_ids(answer: Any) -> tuple[int, ...]:
    """The generated token ids of a /generate answer."""
    return _ids(answer.get("output_ids") if isinstance(answer, dict) else None, "output_ids: is it SGLang's /generate?")


def completed_ids(answer: Any) -> tuple[int, ...]:
    """The generated token ids of a /v1/completions answer: `token_ids`, `tokens`, or names like `token_id:17`."""
    try:
        choice = answer["choices"][0]
        names = (choice.get("logprobs") or {}).get("tokens") or []
    except (KeyError, IndexError, TypeError, AttributeError):
        raise Refused("the server's answer holds no choices: is it /v1/completions?") from None
    matches = [_TOKEN.fullmatch(name) if isinstance(name, str) else None for name in names]
    named = [int(match[1]) for match in matches if match]
    given = choice.get("token_ids") or choice.get("tokens") or (named if len(named) == len(names) else None)
    return _ids(given, "token ids; this engine's /v1/completions returns text only")


def _ids(value: Any, lacking: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or not all(type(token) is int and token >= 0 for token in value):
        raise Refused(f"the server's answer holds no {lacking}")
    return tuple(value)


def _up_to_stop(ids: tuple[int, ...], stop_ids: frozenset[int]) -> tuple[int, ...]:
    for place, token in enumerate(ids):
        if token in stop_ids:
            return ids[: place + 1]
    return ids


def _is_final(error: Exception) -> bool:
    """A request that was understood and declined is not tried again; one too many is."""
    return isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code not in (408, 429)


def _said(error: Exception) -> str:
    if not isinstance(error, urllib.error.HTTPError):
        return str(error) or type(error).__name__
    body = error.read(300).decode("utf-8", "replace").strip()
    return f"{error}: {body}" if body else str(error)
