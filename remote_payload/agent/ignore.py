"""Which names of a folder are no part of a harness: built-in rules and .orchignore, in gitignore's notation.

Supported: `*`, `?`, `[...]`, `**`, a trailing `/` for folders only, a `/` elsewhere to anchor at the root, `!` to take
a rule back, `#` for comments. The last rule that matches decides; what lies below an ignored folder is never looked at.
"""

import re
from typing import Iterable, List, Pattern, Tuple

FILE = ".orchignore"
DEFAULTS = (
    "__pycache__/",
    "*.py[co]",
    ".git",
    ".orch/",
    ".venv",
    ".*_cache/",
    ".ipynb_checkpoints/",
    ".DS_Store",
    "*.sw[op]",
    "*~",
    "cached_*",
    "checkpoints",
    "results",
    "logs",
    "*.pt",
    "*.safetensors",
    "*.bin",
    "eval_results*.json",
    "progress.jsonl",
)
"""beside these, any folder that holds a pyvenv.cfg is ignored"""


def parse(text: str) -> List[str]:
    """The rules in the text of an .orchignore."""
    lines = (line.rstrip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


class Rules:
    """The built-in rules, then `patterns`, in this order."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self._rules = [_compile(pattern) for pattern in (*DEFAULTS, *patterns)]

    def ignored(self, path: str, folder: bool) -> bool:
        """Whether `path` (relative, POSIX) is left out. Its parents are taken not to be."""
        verdict = False
        for regex, folders_only, keep in self._rules:
            if (folder or not folders_only) and regex.fullmatch(path):
                verdict = not keep
        return verdict


def _compile(pattern: str) -> Tuple[Pattern[str], bool, bool]:
    keep = pattern.startswith("!")
    body = pattern[1:] if keep else pattern
    folders_only = body.endswith("/")
    body = body.rstrip("/")
    anchored = "/" in body
    expression = _translate(body.lstrip("/"))
    return re.compile(expression if anchored else "(?:.*/)?" + expression, re.DOTALL), folders_only, keep


def _translate(glob: str) -> str:
    parts = []
    for piece in re.findall(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]/]*\]|\\.|.", glob, re.DOTALL):
        if piece == "**/":
            parts.append("(?:.*/)?")
        elif piece == "**":
            parts.append(".*")
        elif piece == "*":
            parts.append("[^/]*")
        elif piece == "?":
            parts.append("[^/]")
        elif piece[0] == "[" and len(piece) > 2:
            parts.append(_character_class(piece))
        else:
            parts.append(re.escape(piece[-1]))
    return "".join(parts)


def _character_class(piece: str) -> str:
    inside = piece[1:-1]
    negated = inside[0] in "!^"
    inside = (inside[1:] if negated else inside).replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
    expression = "[%s%s]" % ("^/" if negated else "", inside)
    try:
        re.compile(expression)
    except re.error:  # [z-a]: no character is in it
        return re.escape(piece)
    return expression
