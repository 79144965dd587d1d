"""The question about checkpoints: which is the latest complete one."""

import time
from typing import Any, Dict

from remote_payload.agent.scan import scan


def scan_answer(args: Dict[str, Any], talk: Any) -> Dict[str, Any]:
    """args: root, layout, training_alive, step where only that one is asked for, torn: identities that are known to
    be, ship and model_key of the job that is meant. See `scan`."""
    return scan(
        str(args["root"]),
        layout=args.get("layout"),
        training_alive=bool(args.get("training_alive")),
        now=time.time(),
        step=args.get("step"),
        torn=args.get("torn") or (),
        ship=args.get("ship"),
        model_key=args.get("model_key"),
    )
