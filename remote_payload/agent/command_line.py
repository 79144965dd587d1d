"""Whether a command line is the training that a rule names, and how to show one without its secrets.

A rule is a piece of the command line. Many processes hold that text: the training, the shell that started it, an
editor, `tail -f`, an analysis script that takes the training's name as an argument. So what counts is *where* it
begins:

    WHOLE     in the program: the executable, the interpreter's script or `-m` module, or the script of a launcher
              (torchrun, deepspeed, accelerate); it ends at the end of a word and starts at a word or a path component
    PART      in the program, but inside a word (`train.py` in `pretrain.py`)
    SCRIPT    a shell running a script file of that name
    ARGUMENT  anywhere later; never where the rule names a script (`train.py`): then an argument only mentions it

Only the best kind found on the host is taken. Programs that carry, show or edit text never are the training, nor are
wrappers (sudo, timeout, uv run): the process below them is. Pure functions.
"""

import re
from typing import FrozenSet, List, Optional

WHOLE, PART, SCRIPT, ARGUMENT = range(4)


def _names(text: str) -> FrozenSet[str]:
    return frozenset(text.split())


SHELLS = _names("sh bash dash ash zsh fish tcsh csh ksh mksh busybox")
NEVER = (
    _names(
        "tail head less more most cat tac tee grep egrep fgrep rg ag ack awk gawk mawk sed find fd xargs sort wc diff"
    )
    | _names("vi vim view nvim nano emacs emacsclient micro helix hx code ed kak git man multitail lnav")
    | _names("watch top htop btop nvtop ps pgrep pkill kill killall strace ltrace gdb perf py-spy inotifywait entr")
    | _names("ssh sshd sshd-session sshd-auth scp sftp sftp-server rsync mosh-server autossh")
    | _names("tmux screen zellij dtach abduco script sudo su doas runuser login env nohup setsid timeout time make")
    | _names("nice ionice chrt taskset numactl stdbuf unbuffer uv uvx conda mamba micromamba poetry pixi hatch pipenv")
    | _names("systemd systemd-run docker podman nerdctl kubectl crictl singularity apptainer bwrap firejail")
    | _names("tini dumb-init s6-supervise supervisord orch")
)
LAUNCHER_PROGRAMS = _names("mpirun mpiexec orterun prterun orted prted hydra_pmi_proxy srun slurmstepd")
_LAUNCHERS = re.compile(
    r"(^|/)(torchrun|torch_run|deepspeed|accelerate|colossalai|horovodrun|composer)(\.exe)?$"
    r"|^(torch\.distributed\.(run|launch)|deepspeed\.launcher\.\w+|accelerate\.commands\.launch|composer\.cli\.launcher)$"
    r"|(^|/)(torch/distributed/(run|launch)|deepspeed/launcher/\w+|accelerate/commands/launch)\.py$"
)
_INTERPRETER = re.compile(r"^(python|pypy|julia|java|node|perl|ruby|Rscript|lua)[\d.]*t?$")
_VALUE_OPTIONS = frozenset(("-W", "-X", "--check-hash-based-pycs"))
_SCRIPT_NAME = re.compile(r"\.(py|pyc|pyz|sh|jl|pl|rb|lua|js)(\s|$)")


def is_launcher(argv: List[str], program: str) -> bool:
    """Starts the ranks of one training, and so proves that they belong together."""
    if program in LAUNCHER_PROGRAMS:
        return True
    script = _script_index(argv, program)
    return script is not None and bool(_LAUNCHERS.search(argv[script]))


def how_named(argv: List[str], program: str, match: str) -> Optional[int]:
    """The best of WHOLE, PART, SCRIPT, ARGUMENT by which `match` names this process, or None."""
    own_name = argv[0].rsplit("/", 1)[-1].lstrip("-") if argv else ""
    text = " ".join(argv)
    if not argv or match not in text or program in NEVER or own_name in NEVER:
        return None
    script = _script_index(argv, program)
    if script is not None and argv[script].rsplit("/", 1)[-1] == "orch":
        return None
    if program in SHELLS or own_name in SHELLS:
        return SCRIPT if script is not None and _begins_in(argv, match, [script]) is not None else None
    words = [0] if script is None else list(range(script + 1))
    if script is not None and _LAUNCHERS.search(argv[script]):
        words += _launched_words(argv, script)
    kind = _begins_in(argv, match, words)
    if kind is None and not _SCRIPT_NAME.search(match):
        return ARGUMENT
    return kind


def _begins_in(argv: List[str], match: str, words: List[int]) -> Optional[int]:
    """WHOLE or PART where `match` begins inside one of these words (and may run on into later ones), else None."""
    best = None
    for index in words:
        text = " ".join(argv[index:])
        at = text.find(match)
        while 0 <= at < len(argv[index]):
            end = at + len(match)
            starts = at == 0 or text[at - 1] == "/"
            if starts and (end == len(text) or text[end] == " "):
                return WHOLE
            best = PART
            at = text.find(match, at + 1)
    return best


def _script_index(argv: List[str], program: str) -> Optional[int]:
    """Where the interpreter's script or module stands; None for other programs, `-c` code and process titles."""
    own_name = argv[0].rsplit("/", 1)[-1].lstrip("-") if argv else ""
    names = (program, own_name)
    if not any(_INTERPRETER.match(name) or name in SHELLS for name in names):
        return None
    index = 1
    while index < len(argv):
        word = argv[index]
        if word in ("-m", "-jar"):
            return index + 1 if index + 1 < len(argv) else None
        if word.startswith("-") and word != "-":
            if not word.startswith("--") and word.endswith("c"):  # -c, and the shells' -lc
                return None
            index += 2 if word in _VALUE_OPTIONS else 1
            continue
        return index
    return None


def _launched_words(argv: List[str], script: int) -> List[int]:
    """Where the launcher's own script stands: the first later word that looks like one, or the module after -m."""
    for index in range(script + 1, len(argv)):
        if argv[index] in ("-m", "--module") and index + 1 < len(argv):
            return [index + 1]
        if not argv[index].startswith("-") and _SCRIPT_NAME.search(argv[index]):
            return [index]
    return []


SHOWN_COMMAND = 400
"""characters of a command line that are shown"""
_SECRET_WORDS = _names("token secret password passwd pass passphrase key apikey auth credential credentials")
_SECRET_VALUE = re.compile(
    r"\b(hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|xox[a-z]-[\w-]{10,}|AKIA[A-Z0-9]{16}|[0-9a-f]{40}|eyJ[\w-]{10,400}\.[\w-]{10,4000}\.[\w-]{0,4000})\b"
)
_USERINFO = re.compile(r"://[^/@\s]{1,500}@")


def shown(argv: List[str]) -> str:
    """The command line as one line for people: capped, and with `***` for what looks like a secret."""
    words: List[str] = []
    secret_next = False
    for word in argv:
        name, equals, _ = word.partition("=")
        if secret_next and not word.startswith("-"):
            words.append("***")
            secret_next = False
            continue
        secret_next = word.startswith("-") and not equals and _names_a_secret(name)
        words.append(name + "=***" if equals and _names_a_secret(name) else _without_secrets(word))
    text = " ".join(words)
    return text if len(text) <= SHOWN_COMMAND else text[: SHOWN_COMMAND - 1] + "…"


def _names_a_secret(name: str) -> bool:
    return any(piece in _SECRET_WORDS for piece in re.split(r"[-_.\s]+", name.lower()))


def _without_secrets(word: str) -> str:
    return _USERINFO.sub("://***@", _SECRET_VALUE.sub("***", word[:4096]))
