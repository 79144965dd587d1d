"""Which names of a folder are no part of a harness: built-in rules and .orchignore, in gitignore's notation.

Read as gitignore(5) and git's wildmatch.c read them: `*`, `?`, `[...]`, `**`, a trailing `/` for folders only, a `/`
elsewhere to anchor at the root, `!` to take a rule back, `#` for comments, a backslash before what is meant literally.
The last rule that matches decides; what lies below an ignored folder is never looked at.
"""

import re
from typing import Iterable, List, Optional, Pattern, Tuple

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
    lines = (_trimmed(line.rstrip("\r")) for line in text.lstrip("\ufeff").split("\n"))
    return [line for line in lines if line and not line.startswith("#")]


def _trimmed(line: str) -> str:
    """Without the spaces at its end, but for one that a backslash keeps."""
    bare = line.rstrip(" ")
    escapes = len(bare) - len(bare.rstrip("\\"))
    return bare + " " if escapes % 2 and bare != line else bare


class Rules:
    """The built-in rules, then `patterns`, in this order."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self._rules = [_compile(pattern) for pattern in (*DEFAULTS, *patterns)]

    def ignored(self, path: str, folder: bool) -> bool:
        """Whether `path` (relative, POSIX) is left out; orch's own folder is. Its parents are taken not to be."""
        if path == ".orch":
            return True
        verdict = False
        for regex, folders_only, keep in self._rules:
            if (folder or not folders_only) and regex.fullmatch(path):
                verdict = not keep
        return verdict


def _compile(pattern: str) -> Tuple[Pattern[str], bool, bool]:
    keep = pattern.startswith("!")
    body = pattern[1:] if keep else pattern
    folders_only = body.endswith("/")
    body = body[:-1] if folders_only else body
    anchored = "/" in body
    expression = _translate(body[1:] if body.startswith("/") else body, anchored)
    if expression is None:
        return _NEVER, folders_only, keep
    return re.compile(expression if anchored else "(?:.*/)?" + expression, re.DOTALL), folders_only, keep


_NEVER = re.compile(r"(?!)")
_STARS = re.compile(r"\*+")


def _translate(glob: str, anchored: bool) -> Optional[str]:
    """The regular expression of a glob; None for one that matches nothing: a class or an escape that does not end."""
    parts: List[str] = []
    at = 0
    while at < len(glob):
        letter = glob[at]
        if letter == "*":
            stars = _STARS.match(glob, at)
            assert stars is not None
            end = stars.end()
            alone = anchored and end - at > 1 and glob[at - 1 : at] in ("", "/") and glob[end : end + 1] in ("", "/")
            if alone and end < len(glob):
                parts.append("(?:.*/)?")
                end += 1
            else:
                parts.append(".*" if alone else "[^/]*")
            at = end
        elif letter == "[":
            found = _character_class(glob, at + 1)
            if found is None:
                return None
            parts.append(found[0])
            at = found[1]
        elif letter == "\\":
            if at + 1 == len(glob):
                return None
            parts.append(re.escape(glob[at + 1]))
            at += 2
        else:
            parts.append("[^/]" if letter == "?" else re.escape(letter))
            at += 1
    return "".join(parts)


_POSIX = {"alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "upper": "A-Z", "lower": "a-z", "space": r"\s"}
_POSIX.update(xdigit="0-9A-Fa-f", punct=re.escape("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"), blank=r" \t")


def _character_class(glob: str, at: int) -> Optional[Tuple[str, int]]:
    """(regular expression, where the rest begins) of a class whose inside begins at `at`; None where it has no end."""
    negated = glob[at : at + 1] in ("!", "^")
    at += negated
    first, members = True, []
    while first or glob[at : at + 1] != "]":
        named = re.compile(r"\[:([a-z]+):\]").match(glob, at)
        if named:
            if named.group(1) not in _POSIX:
                return None
            members.append(_POSIX[named.group(1)])
            at = named.end()
        else:
            low, at = _member(glob, at)
            high = low
            if glob[at : at + 1] == "-" and glob[at + 1 : at + 2] not in ("", "]"):
                high, at = _member(glob, at + 1)
            if not low or not high:
                return None
            members += [re.escape(low) + "-" + re.escape(high)] if low <= high else []
        first = False
    inside = "".join(members)
    if negated:
        return "[^/%s]" % inside, at + 1
    return ("(?!/)[%s]" % inside if inside else "(?!)"), at + 1


def _member(glob: str, at: int) -> Tuple[str, int]:
    """One character of a class, "" at the end of the glob; and where the next one is."""
    if glob[at : at + 1] == "\\":
        at += 1
    return glob[at : at + 1], at + 1
