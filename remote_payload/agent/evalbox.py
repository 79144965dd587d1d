"""What an evaluation host has and lacks for a job, in one look: harness, checkpoints, runs, data, server, python, room.

Nothing is written, but for the memory of data digests when those are asked for.
"""

import os
import sys
from typing import Any, Dict

from remote_payload.agent import datadigest, harness, hostinfo, launcher, runfolder, runs, scratch, staging
from remote_payload.agent.errors import AgentError
from remote_payload.agent.remotefolder import remote_folder

_PATIENCE = 3.0
"""seconds for the reference server"""
_PYTHON_PATIENCE = 20.0


def facts(args: Dict[str, Any], talk: Any) -> Dict[str, Any]:
    """args {"workdir", "remote"?, "entries"?, "headline"?: dotted path, "data"?: {name: path}, "digest"?:
    bool, "server"?: URL, "python"?, "check_python"?: bool}; each part is answered where its argument is given:

    {"harness": harness.facts, "staged": [...], "arriving": [...], "runs": [...], "remote_folder": [...], "data": {name:
    {"path", "exists", "digest", "files", "bytes", "error"}}, "server": {"url", "ok", "detail", "addresses",
    "here"} or None, "python": {"path", "ok", "version", "detail"}, "disk": {"path", "total", "free", "inodes_free"},
    "memory": {"total", "available"}, "cores", "warning": what may end a run here although nobody asked for it, or ""}.
    """
    workdir, remote = args["workdir"], args.get("remote")
    answer: Dict[str, Any] = {
        "workdir": scratch.expand(workdir),
        "staged": staging.staged(workdir),
        "arriving": staging.arriving(workdir),
        "runs": runs.list_runs(workdir),
        "disk": hostinfo.disk(workdir),
        "memory": hostinfo.memory(),
        "cores": hostinfo.cpus(),
        "warning": launcher.warning(),
        "python": python(args.get("python") or "", bool(args.get("check_python")), talk),
        "server": dict(server(args["server"]), **place_of(args["server"])) if args.get("server") else None,
        "harness": None,
        "remote_folder": [],
        "data": {},
    }
    if remote:
        entries = args.get("entries", [])
        answer["harness"] = harness.facts(remote, entries)
        answer["remote_folder"] = remote_folder(remote, {one["path"] for one in entries}, args.get("headline"))
        answer["data"] = data(args.get("data", {}), remote, workdir, bool(args.get("digest")))
    return answer


def data(paths: Dict[str, str], remote: str, workdir: str, digest: bool) -> Dict[str, Dict[str, Any]]:
    """Where each data path of a job leads on this host, whether it is there and, when asked for, its digest."""
    places = {name: runfolder.data_path(path, remote) for name, path in paths.items()}
    found: Dict[str, Dict[str, Any]] = {
        name: {"path": place, "exists": os.path.exists(place)} for name, place in places.items()
    }
    if digest:
        there = {name: place for name, place in places.items() if found[name]["exists"]}
        memory = os.path.join(scratch.expand(workdir), "state", "digests.json")
        for name, measured in datadigest.digest(there, memory).items():
            found[name].update(measured)
    return found


def python(name: str, check: bool, talk: Any) -> Dict[str, Any]:
    """The evaluation's interpreter: {"path", "ok", "version", "detail"}; it is started only when `check`."""
    try:
        place = runfolder.interpreter(name)
    except AgentError as error:
        return {"path": name, "ok": False, "version": None, "detail": error.message}
    answer: Dict[str, Any] = {"path": place, "ok": True, "version": None, "detail": ""}
    if place == sys.executable:
        answer["version"] = "%d.%d.%d" % sys.version_info[:3]
    elif check:
        answer.update(_ask_version(place, talk))
    return answer


def _ask_version(place: str, talk: Any) -> Dict[str, Any]:
    import subprocess

    line = "import sys; print('%d.%d.%d' % sys.version_info[:3])"
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        child = talk.spawn([place, "-I", "-B", "-c", line], **options)
        said = child.communicate(timeout=_PYTHON_PATIENCE)[0].decode("utf-8", "replace").strip()
    except OSError as error:
        return {"ok": False, "detail": "%s: %s" % (place, error.strerror)}
    except subprocess.TimeoutExpired:
        child.kill()
        return {"ok": False, "detail": "%s: no answer in %d s" % (place, _PYTHON_PATIENCE)}
    if child.returncode:
        return {"ok": False, "detail": "%s: exit %d: %s" % (place, child.returncode, said[-300:])}
    return {"version": said}


def server(url: str) -> Dict[str, Any]:
    """Whether the reference server answers: {"url", "ok", "detail"}. Proxies of the environment are not used."""
    import http.client
    import urllib.error
    import urllib.request

    detail = ""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for path in ("/health", "/v1/models"):
        try:
            with opener.open(url.rstrip("/") + path, timeout=_PATIENCE) as answer:
                return {"url": url, "ok": True, "detail": "%s answers %d" % (path, answer.status)}
        except urllib.error.HTTPError as error:
            detail = "%s answers %d" % (path, error.code)
            error.close()
        except (OSError, ValueError) as error:  # refused, timed out, no such name, not a URL
            return {"url": url, "ok": False, "detail": str(getattr(error, "reason", error))}
        except http.client.HTTPException as error:  # an answer that is no HTTP
            return {"url": url, "ok": False, "detail": "%s: %s" % (type(error).__name__, error)}
    return {"url": url, "ok": False, "detail": detail}


def place_of(url: str) -> Dict[str, Any]:
    """Where a server is, as this host sees it: {"addresses": [...], "here": whether that is this host itself}."""
    import socket
    import urllib.parse

    try:
        name = urllib.parse.urlsplit(url).hostname or ""
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, ValueError):  # no such name, no URL: `server` says so
        return {"addresses": [], "here": False}
    addresses = sorted({str(one[4][0]).partition("%")[0] for one in found})
    mine = hostinfo.addresses()
    here = any(one in mine or one.startswith("127.") or one in ("::1", "0.0.0.0", "::") for one in addresses)
    return {"addresses": addresses, "here": here}
