"""The safetensors file that the model in a torch file becomes: what is in it, in which order, what its header says."""

import json
from typing import Any, Dict, Optional, Tuple

from remote_payload.agent.modeldict import Model, config_of, find_model
from remote_payload.agent.safetensors_file import write_header
from remote_payload.agent.tensors import Tensor
from remote_payload.agent.torchfile import TorchFile
from remote_payload.agent.verdicts import Hostile, Refusal

MAX_GROWTH = 16
"""times the file's size that its model may have: a view that repeats a byte can claim any size"""
LISTED = 200
"""names of placeholders that are listed"""


class Plan:
    """The safetensors file that a torch file's model becomes: its header, and the tensors in the order of reading."""

    def __init__(self, torch: TorchFile, key: Optional[str], source: str) -> None:
        """Raises Refusal where the model is not found or can't be written, naming the tensor."""
        model = find_model(torch, key)
        unique, self.aliases = _without_aliases(model.tensors)
        _check_tensors(unique, torch.file.size)
        # widest elements first, as safetensors itself orders them: all are aligned; then as they lie in the file
        self.order = sorted(
            unique.items(), key=lambda item: (-item[1].dtype.size, torch.position(item[1].storage.key), item[1].offset)
        )
        self.stripped = model.stripped
        config, left_out = config_of(torch)
        self.config = config is not None
        metadata = _metadata(torch, model, self.aliases, source)
        if config is not None:
            metadata["config"] = config
            if left_out:
                metadata["config_left_out"] = json.dumps(left_out)
        self.header = write_header([(n, t.dtype.code or "", t.shape, t.size) for n, t in self.order], metadata)
        self.size = len(self.header) + sum(tensor.size for _, tensor in self.order)


def _without_aliases(tensors: Dict[str, Tensor]) -> Tuple[Dict[str, Tensor], Dict[str, str]]:
    """Each tensor once, and for every other name of it the name under which it is written."""
    first: Dict[Any, str] = {}
    unique: Dict[str, Tensor] = {}
    aliases: Dict[str, str] = {}
    for name, tensor in tensors.items():
        known = first.setdefault(tensor.same_bytes(), name) if tensor.elements else name
        if known == name:
            unique[name] = tensor
        else:
            aliases[name] = known
    return unique, aliases


def _check_tensors(tensors: Dict[str, Tensor], file_size: int) -> None:
    for name, tensor in tensors.items():
        if tensor.dtype.code is None:
            raise Refusal("%r is %s, which safetensors can't hold" % (name, tensor.dtype.name))
        try:
            name.encode("utf-8")
        except UnicodeEncodeError:
            raise Refusal("%r is no name in UTF-8" % name) from None
        if name == "__metadata__" or not name:
            raise Refusal("a tensor can't be named %r in safetensors" % name)
    total = sum(tensor.size for tensor in tensors.values())
    if total > MAX_GROWTH * (file_size + 1024 * 1024):
        raise Hostile("its views claim %d bytes, more than %d times the file" % (total, MAX_GROWTH))


def _metadata(torch: TorchFile, model: Model, aliases: Dict[str, str], source: str) -> Dict[str, str]:
    """Where the tensors come from and what was done to their names. safetensors allows only text."""
    metadata = {
        "format": "pt",
        "source": source,
        "identity": torch.identity,
        "model_key": model.key,
        "stripped": json.dumps(model.stripped),
        "aliases": json.dumps(aliases),
        "left_out": json.dumps(model.left_out[:LISTED]),
        "placeholders": json.dumps(torch.placeholders[:LISTED]),
    }
    if torch.step is not None:
        metadata["step"] = str(torch.step)
    return {key: value.encode("utf-8", "replace").decode("utf-8") for key, value in metadata.items()}
