"""The GPUs as the driver's own tool tells them. orch itself opens no GPU device; nvidia-smi and rocm-smi only ask.

The readers of the tools' output are pure; `[N/A]`, `[Not Supported]` and the like become None.
"""

import json
import os
from typing import Any, Callable, Dict, List, Optional, Tuple

LIMIT_S = 5.0
MIB = 1024 * 1024
FOLDERS = ("/usr/bin", "/usr/local/bin", "/usr/local/nvidia/bin", "/opt/rocm/bin", "/usr/lib/wsl/lib")
"""looked at beside PATH, which a non-interactive ssh session often cuts short"""
GPU_FIELDS = "index,uuid,name,utilization.gpu,memory.used,memory.total,temperature.gpu"
CSV = "--format=csv,noheader,nounits"
CLIENT_QUESTION = ("--query-compute-apps=gpu_uuid,pid", CSV)

Gpu = Dict[str, Any]


def read(talk: Any) -> Dict[str, Any]:
    """{"gpus": [{index, name, utilisation, memory_used, memory_total, temperature, clients: [pid]}], "note"}.

    Utilisation in percent, memory in bytes, temperature in degrees Celsius; what the driver doesn't tell is None.
    `note` says why the list is empty or the clients are not to be trusted, and is None when all is well.
    """
    tool = find("nvidia-smi")
    if tool:
        return _nvidia(talk, tool)
    tool = find("rocm-smi")
    if tool:
        return _rocm(talk, tool)
    return _none("neither nvidia-smi nor rocm-smi is on this host")


def parse_gpus(text: str) -> List[Tuple[str, Gpu]]:
    """(uuid, GPU) of each line of `nvidia-smi --query-gpu=GPU_FIELDS --format=csv,noheader,nounits`."""
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) < 7 or not fields[0].isdigit():
            continue
        # a name may hold a comma: what stands between the uuid and the last four fields
        used, total = number(fields[-3]), number(fields[-2])
        gpu: Gpu = {
            "index": int(fields[0]),
            "name": ", ".join(fields[2:-4]),
            "utilisation": number(fields[-4]),
            "memory_used": None if used is None else used * MIB,
            "memory_total": None if total is None else total * MIB,
            "temperature": number(fields[-1]),
            "clients": [],
        }
        found.append((fields[1], gpu))
    return found


def parse_clients(text: str) -> List[Tuple[str, int]]:
    """(GPU uuid, pid) of each line of `nvidia-smi --query-compute-apps=gpu_uuid,pid --format=csv,noheader`."""
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) >= 2 and fields[1].isdigit():
            found.append((fields[0], int(fields[1])))
    return found


def parse_rocm(text: str) -> List[Gpu]:
    """The GPUs of `rocm-smi --showproductname --showuse --showmeminfo vram --showtemp --json`. Empty for no JSON."""
    opened = text.find("{")
    try:
        cards = json.loads(text[opened:]) if opened >= 0 else {}
    except (ValueError, RecursionError):
        return []
    found = []
    for name in sorted(cards, key=lambda key: (len(key), key)):
        if not (name.startswith("card") and name[4:].isdigit() and isinstance(cards[name], dict)):
            continue
        card = {key.lower(): str(value) for key, value in cards[name].items()}
        temperatures = [key for key in card if key.startswith("temperature") and "(c)" in key]
        gpu: Gpu = {
            "index": int(name[4:]),
            "name": card.get("card series") or card.get("card model") or name,
            "utilisation": number(card.get("gpu use (%)", "")),
            "memory_used": number(card.get("vram total used memory (b)", "")),
            "memory_total": number(card.get("vram total memory (b)", "")),
            "temperature": number(card[temperatures[0]]) if temperatures else None,
            "clients": [],
        }
        found.append(gpu)
    return found


def parse_rocm_clients(text: str) -> List[Tuple[str, int]]:
    """(GPU index, pid) from `rocm-smi --showpidgpus`: a line about each process, its devices in the lines below."""
    found: List[Tuple[str, int]] = []
    pid = None
    for line in text.splitlines():
        words = line.split()
        if len(words) > 3 and words[0] == "PID" and words[1].isdigit() and words[2:4] == ["is", "using"]:
            pid = int(words[1])
        elif pid is not None and words and all(word.strip("[],").isdigit() for word in words):
            found += [(word.strip("[],"), pid) for word in words]
        else:
            pid = None
    return found


def client_question() -> Optional[Tuple[List[str], Callable[[str], List[Tuple[str, int]]]]]:
    """How to ask the driver's tool who its clients are, and how to read the answer; None where there is no tool."""
    tool = find("nvidia-smi")
    if tool:
        return [tool, *CLIENT_QUESTION], parse_clients
    tool = find("rocm-smi")
    return ([tool, "--showpidgpus"], parse_rocm_clients) if tool else None


def number(text: str) -> Optional[int]:
    """A whole number (`99`, `99 %`, `2861 MiB`, `45.0`), else None."""
    word = (text.split() or [""])[0]
    try:
        return int(float(word))
    except (ValueError, OverflowError):
        return None


def _nvidia(talk: Any, tool: str) -> Dict[str, Any]:
    asked = [
        _start(talk, [tool, "--query-gpu=" + GPU_FIELDS, CSV]),
        _start(talk, [tool, *CLIENT_QUESTION]),
    ]
    (cards, failure), (apps, apps_failure) = (_finish(tool, child) for child in asked)
    found = parse_gpus(cards)
    if not found:
        return _none(failure or "nvidia-smi names no GPU")
    by_uuid = dict(found)
    clients = parse_clients(apps)
    for uuid, pid in clients:
        if uuid in by_uuid:
            by_uuid[uuid]["clients"].append(pid)
    return {"gpus": list(by_uuid.values()), "note": apps_failure or _client_note(list(by_uuid.values()), clients)}


def _client_note(gpus: List[Gpu], clients: List[Tuple[str, int]]) -> Optional[str]:
    """Inside a container the driver may name no clients, or pids of the machine outside."""
    strangers = [pid for _, pid in clients if not os.path.exists("/proc/%d" % pid)]
    if strangers:
        return "client processes %s are not visible here: another PID namespace" % strangers
    if not clients and any((gpu["memory_used"] or 0) > 1024 * MIB for gpu in gpus):
        return "GPU memory is in use, yet no client process is named: this container hides them"
    return None


def _rocm(talk: Any, tool: str) -> Dict[str, Any]:
    argv = [tool, "--showproductname", "--showuse", "--showmeminfo", "vram", "--showtemp", "--json"]
    asked = [_start(talk, argv), _start(talk, [tool, "--showpidgpus"])]
    (text, failure), (apps, apps_failure) = (_finish(tool, child) for child in asked)
    found = parse_rocm(text)
    if not found:
        return _none(failure or "rocm-smi names no GPU")
    by_index = {str(gpu["index"]): gpu for gpu in found}
    clients = parse_rocm_clients(apps)
    for index, pid in clients:
        if index in by_index:
            by_index[index]["clients"].append(pid)
    return {"gpus": found, "note": apps_failure or _client_note(found, clients)}


def _none(note: str) -> Dict[str, Any]:
    return {"gpus": [], "note": note}


def find(name: str) -> Optional[str]:
    """Path of a driver's tool, or None."""
    for folder in os.environ.get("PATH", "").split(":") + list(FOLDERS):
        path = folder + "/" + name
        if folder.startswith("/") and os.access(path, os.X_OK):
            return path
    return None


def _start(talk: Any, argv: List[str]) -> Any:
    import subprocess

    return talk.spawn(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(os.environ, LC_ALL="C"),
    )


def _finish(tool: str, child: Any) -> Tuple[str, Optional[str]]:
    """(output, None), or ("", why there is none)."""
    import subprocess

    name = os.path.basename(tool)
    try:
        output = child.communicate(timeout=LIMIT_S)[0].decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return "", "%s did not answer within %.0f s" % (name, LIMIT_S)
    if child.returncode != 0:
        said = " ".join(output.split())[:200]
        return "", "%s failed with exit code %d: %s" % (name, child.returncode, said)
    return output, None
