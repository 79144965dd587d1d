"""Which part of a checkpoint is the model, under which names, and the settings that it was built from."""

import json
import math
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from remote_payload.agent.tensors import Tensor
from remote_payload.agent.torchfile import TorchFile
from remote_payload.agent.unpickler import Made
from remote_payload.agent.verdicts import Hostile, Refusal

MODEL_KEYS = ("model", "state_dict", "model_state_dict", "draft_state_dict", "module")
CONFIG_KEYS = ("config", "model_args", "args", "hyper_parameters")
WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""names that DDP, torch.compile, FSDP and activation checkpointing put around a module"""
MAX_TENSORS = 1_000_000
MAX_DEPTH = 100
MAX_VALUES = 2_000_000
"""values looked at: a dictionary that holds one child twice, sixty levels deep, would otherwise never end"""
_CONFIG_BYTES = 1024 * 1024
_CONFIG_VALUES = 100_000


class Model(NamedTuple):
    """A state dict found in a checkpoint, its names as a plain module has them."""

    key: str
    """where in the file it was: "" for the file itself"""
    tensors: Dict[str, Tensor]
    stripped: List[str]
    """wrapper names that were taken out of tensor names"""
    left_out: List[str]
    """names of values that are no tensors"""


def find_model(torch: TorchFile, key: Optional[str] = None) -> Model:
    """The model in the file, under `key` where that is given. Raises Refusal naming the keys or the tensor."""
    found_at, mapping = _named(torch.top, key) if key else _recognised(torch.top)
    flat, left_out = _flatten(mapping)
    tensors, stripped = _unwrap(flat)
    if not tensors:
        raise Refusal("no tensors under %r" % found_at)
    return Model(found_at, tensors, stripped, left_out)


def config_of(torch: TorchFile) -> Tuple[Optional[str], List[str]]:
    """The settings in the file as JSON text, and the paths of values in it that aren't plain and were left out."""
    top = _mapping(torch.top)
    if top is None:
        return None, []
    for key in CONFIG_KEYS:
        settings = _mapping(top.get(key))
        if settings:
            left_out: List[str] = []
            plain = _plain(settings, key, left_out, [_CONFIG_VALUES], 0)
            text = json.dumps(plain, sort_keys=True, allow_nan=False)
            if plain and len(text) <= _CONFIG_BYTES:
                return text, left_out
    return None, []


def _named(top: Any, key: str) -> Tuple[str, Dict[Any, Any]]:
    """The value under `key`: a key of the file, or a path through several such as `ema.model`."""
    value = _mapping(top)
    if value is not None and key in value:
        value = _mapping(value[key])
    else:
        for part in key.split("."):
            value = _mapping(value.get(part)) if value is not None else None
    if value is None:
        raise Refusal("no state dict under %r; the file has %s" % (key, _keys(top)))
    return key, value


def _recognised(top: Any) -> Tuple[str, Dict[Any, Any]]:
    whole = _mapping(top)
    if whole is None:
        raise Refusal("the file holds a %s, not a dictionary" % _kind(top))
    found = [key for key in MODEL_KEYS if _holds_tensors(whole.get(key))]
    if len(found) > 1:
        raise Refusal(
            "several keys of the file hold a model: %s; name one as `model_key`" % ", ".join(map(repr, found))
        )
    if found:
        return found[0], _mapping(whole[found[0]]) or {}
    for key in MODEL_KEYS:
        if isinstance(whole.get(key), Made):
            raise Refusal("%r is a whole %s, not a state dict" % (key, whole[key].function))
    tensors = sum(isinstance(value, Tensor) for value in whole.values())
    if tensors and tensors * 2 > len(whole):
        return "", whole
    raise Refusal("no key of the file is known to hold a model; it has %s: name one as `model_key`" % _keys(top))


def _mapping(value: Any) -> Optional[Dict[Any, Any]]:
    """A dictionary, or what a subclass of one or a Namespace held."""
    if isinstance(value, dict):
        return value
    if isinstance(value, Made):
        if value.items is not None:
            return value.items
        if isinstance(value.state, dict) and value.function.rpartition(".")[2] in ("Namespace", "SimpleNamespace"):
            return value.state
    return None


def _holds_tensors(value: Any) -> bool:
    """Whether a tensor lies in it, looking only a little way in."""
    waiting = [value]
    for _ in range(10_000):
        if not waiting:
            return False
        mapping = _mapping(waiting.pop())
        if mapping is not None:
            if any(isinstance(item, Tensor) or _unreadable(item) for item in mapping.values()):
                return True
            waiting.extend(mapping.values())
    return False


def _unreadable(value: Any) -> bool:
    """A tensor of a kind that torch rebuilds otherwise: sparse, quantized, distributed, or past its storage."""
    return isinstance(value, Made) and value.function.startswith("torch.") and "._rebuild" in value.function


def _flatten(mapping: Dict[Any, Any]) -> Tuple[Dict[str, Tensor], List[str]]:
    """Nested dictionaries as dotted names. Raises Refusal at a tensor that orch can't read, naming it."""
    flat: Dict[str, Tensor] = {}
    left_out: List[str] = []
    waiting: List[Tuple[str, Any, int]] = [("", mapping, 0)]
    looked_at = 0
    while waiting:
        prefix, value, depth = waiting.pop()
        inner = _mapping(value)
        if isinstance(value, Tensor):
            if prefix in flat:
                raise Refusal("two tensors named %r" % prefix)
            flat[prefix] = value
        elif inner is not None:
            looked_at += len(inner)
            if depth >= MAX_DEPTH or looked_at > MAX_VALUES or len(flat) > MAX_TENSORS:
                raise Hostile("a model nested or filled without end")
            for key, item in reversed(list(inner.items())):
                if not isinstance(key, (str, int)):
                    raise Refusal("a part of the model is named by a %s, below %r" % (type(key).__name__, prefix))
                waiting.append(("%s.%s" % (prefix, key) if prefix else str(key), item, depth + 1))
        elif isinstance(value, Made) and not prefix.endswith("_extra_state"):
            raise Refusal("%r is no plain dense tensor: made by %s" % (prefix, value.function))
        else:
            left_out.append(prefix)
    return flat, left_out


def _unwrap(flat: Dict[str, Tensor]) -> Tuple[Dict[str, Tensor], List[str]]:
    """Names without the wrappers, wherever they stand between dots. Raises Refusal where two become one."""
    tensors: Dict[str, Tensor] = {}
    came_from: Dict[str, str] = {}
    stripped: Set[str] = set()
    for name, tensor in flat.items():
        parts = name.split(".")
        kept = [part for part in parts[:-1] if part not in WRAPPERS] + parts[-1:]
        stripped.update(part + "." for part in parts[:-1] if part in WRAPPERS)
        plain = ".".join(kept)
        if plain in tensors:
            raise Refusal("%r and %r are both %r without their wrappers" % (came_from[plain], name, plain))
        tensors[plain] = tensor
        came_from[plain] = name
    return tensors, sorted(stripped)


def _plain(value: Any, path: str, left_out: List[str], budget: List[int], depth: int) -> Any:
    """What JSON can say of a value; the rest is named in `left_out`. `budget[0]` values are looked at, at most."""
    budget[0] -= 1
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < 2**63:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if budget[0] > 0 and depth < 20:
        inner = _mapping(value)
        if inner is not None:
            found = {
                str(key): _plain(item, "%s.%s" % (path, key), left_out, budget, depth + 1)
                for key, item in inner.items()
                if isinstance(key, (str, int))
            }
            return {
                key.encode("utf-8", "replace").decode("utf-8"): item
                for key, item in found.items()
                if item is not _NOTHING
            }
        if isinstance(value, (list, tuple)):
            items = [_plain(item, "%s.%d" % (path, at), left_out, budget, depth + 1) for at, item in enumerate(value)]
            return [None if item is _NOTHING else item for item in items]
    if len(left_out) < 100:
        left_out.append(path.encode("utf-8", "replace").decode("utf-8"))
    return _NOTHING


class _Nothing:
    pass


_NOTHING = _Nothing()


def _keys(top: Any) -> str:
    mapping = _mapping(top)
    if mapping is None:
        return "no keys"
    names = [repr(key) for key in list(mapping)[:20] if isinstance(key, (str, int))]
    return "the keys " + ", ".join(names) + (" and others" if len(mapping) > 20 else "")


def _kind(value: Any) -> str:
    return value.function if isinstance(value, Made) else type(value).__name__
