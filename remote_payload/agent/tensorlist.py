"""What a proven checkpoint holds, as its evaluation will find it: names, types, shapes of the tensors, and settings."""

import json
from typing import Any, Dict, Optional

from remote_payload.agent.proofs import Proof
from remote_payload.agent.verdicts import Refusal, Torn

LISTED = 20_000
"""tensors, at most"""
_CONFIG_BYTES = 1 << 20


def listed(proof: Proof, model_key: Optional[str]) -> Dict[str, Any]:
    """{"tensors": {name: [type, shape]}, "config": JSON text or None, "refused": "" or why there is none, "hint"}."""
    answer: Dict[str, Any] = {"tensors": {}, "config": None, "refused": proof.refused, "hint": proof.hint}
    if proof.refused:
        return answer
    try:
        if proof.torch is not None:
            _add_torch(answer, proof, model_key)
        else:
            _add_safetensors(answer, proof)
    except (Refusal, Torn, KeyError, TypeError) as problem:
        answer.update(tensors={}, refused=str(problem))
    if len(answer["tensors"]) > LISTED:
        answer.update(tensors={}, refused="more than %d tensors" % LISTED)
    return answer


def _add_torch(answer: Dict[str, Any], proof: Proof, model_key: Optional[str]) -> None:
    from remote_payload.agent.modeldict import config_of
    from remote_payload.agent.modelplan import Plan

    assert proof.torch is not None
    plan = Plan(proof.torch, model_key or proof.model_key, "")
    answer["tensors"] = {name: [tensor.dtype.code or "", list(tensor.shape)] for name, tensor in plan.order}
    answer["config"] = config_of(proof.torch)[0]


def _add_safetensors(answer: Dict[str, Any], proof: Proof) -> None:
    from remote_payload.agent.safetensors_file import read_header

    for member in proof.members:
        if member.name.endswith(".safetensors"):
            header = read_header(member.file)
            rows = json.loads(header.raw.decode("utf-8"))
            answer["tensors"].update(
                {name: [rows[name].get("dtype"), rows[name].get("shape")] for name in header.tensors}
            )
            answer["config"] = answer["config"] or header.metadata.get("config")
        elif member.name == "config.json" and member.file.size <= _CONFIG_BYTES:
            answer["config"] = member.file.read(0, member.file.size).decode("utf-8", "replace")
