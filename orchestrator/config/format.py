"""The keys of hosts.yaml, of jobs/*.yaml and of the user's own config.yaml: kind, meaning, whether it must be there.

The one definition of the format: reading (load.py) and JSON Schema (schema.py) both come from it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orchestrator.config import units, words
from orchestrator.config.kinds import Key, ListOf, MapOf, Record, Scalar, Schema, WordOr

_STRING: Schema = {"type": "string", "minLength": 1}
_SIZE: Schema = {
    "anyOf": [
        {"type": "integer", "minimum": 1},
        {"type": "string", "pattern": "^[0-9]+(\\.[0-9]+)? ?([KMGTkmgt]i?)?[Bb]$"},
    ]
}
_DURATION: Schema = {
    "anyOf": [
        {"type": "number", "exclusiveMinimum": 0},
        {"type": "string", "pattern": "^([0-9]+(\\.[0-9]+)? ?(ms|min|[smhd]) ?)+$"},
    ]
}
_GPUS: Schema = {
    "anyOf": [
        {"type": "integer", "minimum": 0, "maximum": units.HIGHEST_GPU},
        {"type": "string", "pattern": "^ *[0-9]+( *- *[0-9]+)?( *, *[0-9]+( *- *[0-9]+)?)* *$"},
    ]
}


def choice(*options: str) -> Scalar:
    """One of a few words."""

    def parse(word: str) -> str:
        if word not in options:
            raise ValueError(_either(options))
        return word

    return Scalar(_either(options), parse, {"enum": list(options)})


def _either(options: tuple[str, ...]) -> str:
    return " or ".join([", ".join(options[:-1]), options[-1]] if len(options) > 1 else options)


def _counted(lowest: int, expected: str) -> Scalar:
    def parse(word: str) -> int:
        number = units.whole_number(word)
        if number < lowest:
            raise ValueError(expected)
        return number

    return Scalar(expected, parse, {"type": "integer", "minimum": lowest})


def _string(expected: str, parse: Callable[[str], Any], pattern: str = "") -> Scalar:
    return Scalar(expected, parse, {**_STRING, "pattern": pattern} if pattern else _STRING)


TEXT = _string("some text", words.text)
NAME = _string("a name", words.name, words.NAME_PATTERN)
PATH = _string("a path", words.text)
TARGET = _string("an ssh target", words.ssh_target, "^[^-\\s][^\\s]*$")
SIZE = Scalar("a size like 60GiB", units.size, _SIZE)
DURATION = Scalar("a duration like 6h", units.duration, _DURATION)
GPUS = Scalar("GPU numbers like 0-4 or 5,7", units.gpu_range, _GPUS)
ARGV = ListOf(TEXT, "a list: program and arguments, such as [pass, show, token]")

LIMITS = Record(
    "a mapping of limits",
    {
        "threads": Key(_counted(1, "a number of threads"), "The most CPU threads that an evaluation uses."),
        "memory": Key(SIZE, "The most memory that an evaluation uses, such as 60GiB."),
        "wall": Key(DURATION, "The longest that an evaluation may run, such as 6h."),
    },
)

HOST = Record(
    "a mapping such as {roles: [train]}",
    {
        "ssh": Key(TARGET, "Alias from ~/.ssh/config, or user@host[:port]. Default: the host's name."),
        "roles": Key(
            ListOf(choice("train", "eval"), "a list of train and eval", or_one=True),
            "What orch does there: train (look, never write) or eval (run evaluations); or both.",
            required=True,
        ),
        "transport": Key(
            choice("auto", "fabric", "openssh", "local"),
            "How to get there. auto picks; local makes this machine a host.",
        ),
        "python": Key(PATH, "The host's Python for orch's questions and for {python} in commands. Default: python3."),
        "workdir": Key(
            _string("a folder", words.remote_folder),
            "Where orch keeps its files on an evaluation host. Default: ~/orch.",
        ),
        "root": Key(PATH, "Only with transport: local. The folder on this machine that stands for the host's home."),
        "limits": Key(LIMITS, "What every evaluation on this host may use; a job may ask for less."),
    },
)

PROCESS = Record(
    "exactly one of match, pid and pidfile",
    {
        "match": Key(TEXT, "Part of the training process's command line."),
        "pid": Key(_counted(1, "a process number"), "Its process id."),
        "pidfile": Key(PATH, "A file on the host that holds its process id."),
    },
    exactly_one=True,
)

RUN = Record(
    "a mapping such as {host: ct200, checkpoints: /workspace/checkpoints}",
    {
        "host": Key(
            ListOf(NAME, "the name of a host, or a list of them", or_one=True),
            "The host that trains, or a list of hosts; the first holds the checkpoints.",
            required=True,
        ),
        "checkpoints": Key(PATH, "The folder on the first host that receives the checkpoints.", required=True),
        "layout": Key(
            _string("a layout", words.layout),
            "A layout's name, or a pattern like step_{step}/checkpoint.pt. Default: recognised.",
        ),
        "process": Key(PROCESS, "How to recognise the training process: one of match, pid, pidfile."),
        "log": Key(PATH, "The training's log file, from which its progress is read."),
        "progress": Key(
            _string("a preset or regular expression", words.progress),
            "A preset's name, or a regular expression with named groups step, epoch, loss, rate, unit.",
        ),
        "source": Key(PATH, "The folder of the training's source; its git state is recorded."),
        "job": Key(NAME, "The job that evaluates this run by default: jobs/NAME.yaml."),
        "eval_host": Key(NAME, "The host that evaluates this run by default; it has the role eval."),
        "gpus": Key(
            MapOf(
                words.name,
                ListOf(GPUS, "GPU numbers like 0-4 or 5,7, or a list of them", or_one=True),
                "a mapping such as {target: 0-4, drafter: 5-7}",
                pattern=words.NAME_PATTERN,
            ),
            "What the training's GPUs do: a role's name and its GPU numbers. Groups them in status.",
        ),
    },
)

TIMEOUTS = Record(
    "a mapping such as {connect: 10s}",
    {
        "connect": Key(DURATION, "Until a host has answered and let us in. Default: 10s."),
        "heartbeat": Key(DURATION, "Between two signs of life, in both directions. Default: 3s."),
        "dead": Key(DURATION, "Silence after which a connection is taken to be dead. Default: 15s."),
        "agent_dead": Key(DURATION, "Silence after which orch's process on a host ends itself. Default: 20s."),
        "question": Key(DURATION, "The longest that one question to a host may take. Default: 120s."),
        "poll": Key(DURATION, "Between two looks at a running evaluation. Default: 1s."),
    },
)

HOSTS_FILE = Record(
    "a mapping with the keys hosts and runs",
    {
        "hosts": Key(
            MapOf(words.name, HOST, "a mapping of host names", pattern=words.NAME_PATTERN),
            "The machines, by name. The name is an ssh alias unless ssh: says otherwise.",
            required=True,
        ),
        "runs": Key(
            MapOf(words.name, RUN, "a mapping of run names", pattern=words.NAME_PATTERN),
            "The training runs, by name.",
        ),
        "timeouts": Key(TIMEOUTS, "Time limits of connections and questions."),
    },
    allow_x=True,
)

VALUE_SOURCE = Record(
    "a mapping such as {from: env, name: HF_TOKEN}",
    {
        "from": Key(
            choice("env", "file", "command"),
            "Where this computer finds the value: an environment variable, a file, or one of your own commands.",
            required=True,
        ),
        "name": Key(TEXT, "The variable, the file, or the command's name in your own config.yaml.", required=True),
    },
)
ENV_WORD = Scalar(
    "a value, or {from: env, name: ...}",
    lambda word: word,
    {"type": ["string", "number", "boolean"]},
)

JOB_FILE = Record(
    "a mapping with the keys harness and command",
    {
        "harness": Key(
            Record(
                "a mapping such as {local: harness, remote: /root/eval}",
                {
                    "local": Key(
                        PATH, "The folder with the evaluation scripts, relative to that of hosts.yaml.", required=True
                    ),
                    "remote": Key(
                        _string("a folder", words.remote_folder),
                        "The folder on the evaluation host that is kept equal to it.",
                        required=True,
                    ),
                },
            ),
            "The evaluation scripts: where they are here, and where they belong on the evaluation host.",
            required=True,
        ),
        "command": Key(
            ListOf(TEXT, 'a list such as ["{python}", eval.py, "{checkpoint}"]'),
            "Program and arguments, with {python}, {checkpoint}, {result} and {data.NAME} filled in.",
            required=True,
        ),
        "data": Key(
            MapOf(words.name, PATH, "a mapping of names to paths", pattern=words.NAME_PATTERN),
            "What the evaluation reads on the evaluation host: never copied; its digest goes into the result.",
        ),
        "checkpoint": Key(
            Record(
                "a mapping such as {ship: model}",
                {
                    "ship": Key(
                        choice("model", "whole"), "model: the weights alone, as safetensors. whole: the file as it is."
                    ),
                    "model_key": Key(
                        TEXT, "The key in the checkpoint that holds the model, where it isn't found by itself."
                    ),
                },
            ),
            "What of a checkpoint is copied.",
        ),
        "env": Key(
            MapOf(
                words.variable,
                WordOr(ENV_WORD, VALUE_SOURCE),
                "a mapping of environment variables",
                pattern=words.VARIABLE_PATTERN,
            ),
            "The evaluation's environment. A secret is named with {from: ..., name: ...}, never written here.",
        ),
        "result": Key(
            Record(
                "a mapping such as {file: eval_results.json}",
                {
                    "file": Key(
                        _string("a file name", words.result_file),
                        "The JSON file that the evaluation writes. Default: eval_results.json.",
                    ),
                    "headline": Key(TEXT, "The number that counts: its dotted path in the file."),
                    "better": Key(choice("higher", "lower"), "Which way is better. Default: higher."),
                    "items": Key(TEXT, "Dotted path of the list of measured items, from which intervals are computed."),
                    "item_id": Key(TEXT, "The key of an item that names it. Default: id."),
                    "item_value": Key(TEXT, "Dotted path of an item's value."),
                },
            ),
            "What the evaluation writes and how to read it.",
        ),
        "limits": Key(LIMITS, "What this evaluation may use."),
        "server": Key(
            _string("a URL", words.server, "^https?://"),
            "A server that the evaluation needs, as the evaluation host sees it; checked before the start.",
        ),
    },
    allow_x=True,
)

USER_FILE = Record(
    "a mapping with the key commands",
    {
        "commands": Key(
            MapOf(words.name, ARGV, "a mapping of names to commands", pattern=words.NAME_PATTERN),
            "Commands of this computer that jobs may name with {from: command, name: ...}.",
        )
    },
    allow_x=True,
)
