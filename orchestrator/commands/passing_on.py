"""A new result goes on to what the user's own config.yaml names: a command of theirs, and TensorBoard's event files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.errors import OrchError

if TYPE_CHECKING:
    from orchestrator.config import UserConfig
    from orchestrator.model import Result, Run


def pass_on(run: Run, result: Result) -> tuple[str, ...]:
    """Tell everybody of a new result; returns what went wrong, which never harms the result itself."""
    from orchestrator import config

    try:
        user = config.load_user_config()
    except OrchError as error:
        return (f"the result of step {result.step} was not passed on: {error.message}",)
    return tuple(filter(None, (_to_hook(user, run, result), _to_tensorboard(user, result))))


def _to_hook(user: UserConfig, run: Run, result: Result) -> str:
    if not user.result_hook:
        return ""
    from orchestrator.actions import hooks
    from orchestrator.reports.documents import result_body
    from orchestrator.reports.envelope import document

    told = document("result", result_body(run, result))
    problem = hooks.tell(user.result_hook, told, user.hook_timeout)
    return f"hooks.result ({user.result_hook[0]}) for step {result.step}: {problem}" if problem else ""


def _to_tensorboard(user: UserConfig, result: Result) -> str:
    if user.tensorboard is None:
        return ""
    import json

    from orchestrator.actions import event_files

    try:
        measured = json.loads((result.folder / result.file).read_bytes())
        event_files.write(user.tensorboard, result, measured if isinstance(measured, dict) else {})
    except OrchError as error:
        return f"tensorboard: {error.message}. {error.hint}"
    except (OSError, ValueError, RecursionError) as error:  # the last for thousands of objects in each other
        return f"tensorboard: step {result.step} was not written to {user.tensorboard}: {error}"
    return ""
