"""The question about checkpoints: which is the latest complete one."""

import time
from typing import Any, Dict, Optional

from remote_payload.agent.scan import scan


def scan_answer(args: Dict[str, Any], talk: Any) -> Dict[str, Any]:
    """args: `process`, the rule of the training process, and those of `checkpoints`. Without a rule nothing says that
    a training lives."""
    rule = args.get("process")
    return checkpoints(args, {"state": "absent"} if rule is None else _process(rule))


def checkpoints(args: Dict[str, Any], process: Optional[Dict[str, Any]]) -> Dict[str, Any]:
    """args: root, layout, step where only that one is asked for, torn: those that are known to be, ship and
    model_key of the job that is meant, tensors, known. See `scan`. `process` is what was found of the training."""
    alive = (process or {}).get("state") not in ("absent", "zombie")  # where it can't be known, it may be saving
    return scan(
        str(args["root"]),
        layout=args.get("layout"),
        training_alive=alive,
        now=time.time(),
        step=args.get("step"),
        torn=args.get("torn") or (),
        ship=args.get("ship"),
        model_key=args.get("model_key"),
        tensors=bool(args.get("tensors")),
        known=args.get("known"),
    )


def _process(rule: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    from remote_payload.agent import training
    from remote_payload.agent.errors import AgentError

    try:
        return training.find(rule)
    except AgentError:  # a pidfile that is not there: `status` says so
        return None
