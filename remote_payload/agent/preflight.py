"""What stands in the way of an evaluation on this host, tried before anything is shipped: the interpreter, what the
harness imports, whether its program knows the job's options, whether the checkpoint's tensors fit, and room.

The programs run in a folder that is removed afterwards, GPUs hidden, with the environment of an evaluation, and end
with the agent.
"""

import json
import os
import shutil
from typing import Any, Dict, Iterable, List, Optional, Sequence

from remote_payload.agent import evalbox, folder, harness, hostinfo, inflow, limits, runfolder, scratch
from remote_payload.agent.errors import AgentError
from remote_payload.agent.questions_observe import together

PATIENCE = 45.0
"""seconds for one program: importing torch from a cold network disk takes long"""
SAID = 64 << 10
"""bytes of a program's output that are read"""
CHECKER = "check_tensors.py"
"""a harness that holds a program of this name is asked about tensors"""
_IMPORTS = """
import importlib, importlib.util, json, sys
from importlib import metadata
asked, found = json.loads(sys.argv[1]), []
for name in asked["names"]:
    row = {"name": name, "ok": True, "version": None, "detail": ""}
    try:
        if asked["only_look"]:
            module = None
            if importlib.util.find_spec(name) is None:
                raise ImportError("No module named %r" % name)
        else:
            module = importlib.import_module(name)
        row["version"] = getattr(module, "__version__", None)
    except BaseException as error:
        row.update(ok=False, detail="%s: %s" % (type(error).__name__, error))
    if row["ok"] and not isinstance(row["version"], str):
        try:
            row["version"] = metadata.version(name)
        except Exception:
            row["version"] = None
    found.append(row)
sys.stdout.write("\\n" + json.dumps(found))
"""


def preflight_answer(args: Dict[str, Any], talk: Any) -> Dict[str, Any]:
    """args {"workdir", "remote", "entries", "synced": bool, "command", "python", "data", "env", "threads", "imports":
    [name], "only_look": bool, "help": bool, "tensors": {...} or None, "server"}, then, unless `synced`, the bytes of
    the files in `entries`, in that order ->

    {"python", "data", "server", "disk", "memory", "cores": as `evalbox` has them; "imports": [{"name", "ok", "version",
    "detail"}] or {"error"}; "help": {"exit", "text"} or {"error"} or None; "tensors": {"ok", "detail"} or None;
    "noexec": bool; "writable": "" or why the work folder is not; "harness": facts or None}.
    """
    workdir = scratch.expand(args["workdir"])
    answer: Dict[str, Any] = {"writable": "", "noexec": False, "imports": [], "help": None, "tensors": None}
    answer.update(
        disk=hostinfo.disk(workdir),
        memory=hostinfo.memory(),
        cores=hostinfo.cpus(),
        data=evalbox.data(args["data"], args["remote"], workdir, False),
        server=evalbox.server(args["server"]) if args.get("server") else None,
        python=evalbox.python(args["python"], True, talk),
        harness=None if args["synced"] else harness.facts(args["remote"], args["entries"]),
    )
    try:
        scratch.sweep(os.path.join(workdir, "preflight"), "try")
        place = scratch.create(os.path.join(workdir, "preflight"), "try")
    except OSError as error:
        answer["writable"] = inflow.unwritable(workdir, error, "nothing can be tried there").message
        return answer
    talk.at_end(lambda: shutil.rmtree(place, ignore_errors=True))
    try:
        answer["noexec"] = bool(os.statvfs(place).f_flag & getattr(os, "ST_NOEXEC", 8))
        scripts = scratch.expand(args["remote"]) if args["synced"] else os.path.join(place, "harness")
        if not args["synced"]:
            _unpack(scripts, args["entries"], talk.received() if any(one["size"] for one in args["entries"]) else ())
        if answer["python"]["ok"]:
            answer.update(_Trial(args, answer["python"]["path"], scripts, place, talk).run())
    except OSError as error:
        answer["writable"] = inflow.unwritable(workdir, error, "nothing can be tried there").message
    finally:
        shutil.rmtree(place, ignore_errors=True)
        _drop(os.path.dirname(place))
    return answer


def _drop(path: str) -> None:
    try:
        os.rmdir(path)
    except OSError:  # another preflight is at work
        pass


def _unpack(root: str, entries: Sequence[Dict[str, Any]], pieces: Iterable[bytes]) -> None:
    """The harness as it is on the laptop. Raises AgentError, OSError."""
    os.mkdir(root)
    there, stream = folder.Folder(root), inflow.Inflow(pieces)
    for one in entries:
        with there.parent(one["path"], create=True) as (parent, name):
            mode = 0o700 if one["mode"] & 0o100 else 0o600
            descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, dir_fd=parent)
        try:
            for part in stream.take(one["size"]):
                inflow.write_all(descriptor, part)
        finally:
            os.close(descriptor)
    stream.finish()


class _Trial:
    """The programs of one preflight, all started at the same time."""

    def __init__(self, args: Dict[str, Any], python: str, scripts: str, place: str, talk: Any) -> None:
        self._args = args
        self._python = python
        self._scripts = scripts
        self._talk = talk
        self._values = {"python": python, "checkpoint": os.path.join(place, "checkpoint"), "result": place + "/result"}
        for name, path in args["data"].items():
            self._values["data." + name] = runfolder.data_path(path, args["remote"])
        own = {"PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": place, "PYTHONUNBUFFERED": "1"}
        self._environment = {**os.environ, **args["env"], **limits.thread_environment(args.get("threads")), **own}
        self._environment.update(limits.HIDDEN_GPUS)

    def run(self) -> Dict[str, Any]:
        words = [runfolder.fill(word, self._values) for word in self._args["command"]]
        parts: Dict[str, Any] = {}
        if self._args["imports"]:
            parts["imports"] = self._imports
        if self._args["help"]:
            parts["help"] = lambda: self._help(words)
        if self._args.get("tensors") is not None and os.path.exists(os.path.join(self._scripts, CHECKER)):
            parts["tensors"] = lambda: self._tensors(words)
        return together(parts) if parts else {}

    def _imports(self) -> List[Dict[str, Any]]:
        asked = json.dumps({"names": self._args["imports"], "only_look": bool(self._args.get("only_look"))})
        done = self._try([self._python, "-c", _IMPORTS, asked])
        try:
            rows = json.loads(done["text"].rpartition("\n")[2])
        except ValueError:
            raise AgentError(
                "importing ended the interpreter (exit %s): %s" % (done["exit"], done["text"][-500:])
            ) from None
        return list(rows)

    def _help(self, words: Sequence[str]) -> Dict[str, Any]:
        return self._try([*words[:2], "--help"])

    def _tensors(self, words: Sequence[str]) -> Dict[str, Any]:
        told = json.dumps(self._args["tensors"]).encode("utf-8")
        done = self._try([self._python, CHECKER, *words[2:]], told)
        return {"ok": done["exit"] == 0, "detail": done["text"].strip()[-2000:]}

    def _try(self, argv: Sequence[str], told: bytes = b"") -> Dict[str, Any]:
        """{"exit", "text"} of a program. Raises AgentError where it does not start or does not end."""
        import subprocess

        options: Dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        try:
            child = self._talk.spawn(
                list(argv), cwd=self._scripts, env=self._environment, start_new_session=True, **options
            )
        except OSError as error:
            raise AgentError("%s: %s" % (argv[0], error.strerror)) from None
        try:
            said: Optional[bytes] = child.communicate(told, timeout=PATIENCE)[0]
        except subprocess.TimeoutExpired:
            child.kill()
            raise AgentError("no answer in %d s: %s" % (PATIENCE, " ".join(argv[:2]))) from None
        return {"exit": child.returncode, "text": (said or b"")[:SAID].decode("utf-8", "replace")}
