"""What the processes that orch started on a host asked the kernel for, from a system-call trace of its sshd.

strace follows sshd with one file a process. A process counts from its first exec of something that is not sshd; so do
all processes that such a one starts. `offences` then lists what promise 1 forbids on a training box.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CALLS = (
    "execve,clone,clone3,fork,vfork,open,openat,openat2,creat,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,"
    "rmdir,link,linkat,symlink,symlinkat,chmod,fchmod,fchmodat,chown,fchown,lchown,fchownat,truncate,ftruncate,fallocate,"
    "utime,utimes,utimensat,futimesat,mknod,mknodat,setxattr,lsetxattr,fsetxattr,removexattr,kill,tkill,tgkill,"
    "pidfd_send_signal,rt_sigqueueinfo,flock,fcntl,mount,umount2,ptrace,process_vm_writev,memfd_create"
)
STARTS = re.compile(r"^(?:clone|clone3|fork|vfork)\(.*\) = (\d+)$")
EXEC = re.compile(r'^execve\("([^"]*)"')
OPENED = re.compile(r'^(?:open|openat|openat2|creat)\((?:[^,"]*, )?"((?:[^"\\]|\\.)*)"(.*)\) = (-?\d+)')
SIGNAL = re.compile(r"^(?:kill|tkill|tgkill|pidfd_send_signal|rt_sigqueueinfo)\((-?\d+), (?:(-?\d+), )?([A-Z0-9]+)")
LOCK = re.compile(r"^(?:flock\(|fcntl\(\d+, F_(?:SETLK|SETLKW|OFD_SETLK|OFD_SETLKW|SETLEASE))")
MEMORY_FILE = re.compile(r"^memfd_create\(.* = (\d+)$")
MODE_OF = re.compile(r"^fchmod\((\d+), ")
OWN = r"/proc/(?:self|thread-self)/.*|/proc/\d+/(?:autogroup|oom_score_adj)"
HARMLESS = re.compile(rf"^(?:/dev/null|/dev/tty|{OWN})$")
WRITES = ("O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC")
READS = (
    "execve",
    "clone",
    "clone3",
    "fork",
    "vfork",
    "open",
    "openat",
    "openat2",
    "creat",
    "fcntl",
    "flock",
    "memfd_create",
)
SIGNALS = ("kill", "tkill", "tgkill", "pidfd_send_signal", "rt_sigqueueinfo")


@contextmanager
def traced(testhosts, host: str) -> Iterator[Path]:  # type: ignore[no-untyped-def]
    """Trace the sshd of a test host for the time of a block; yields the folder that holds the trace afterwards."""
    testhosts.sh(host, "rm -rf /tmp/trace; mkdir /tmp/trace")
    pid = testhosts.sh(host, "cat /run/sshd.pid").stdout.strip()
    script = Path(__file__).parent / "testhosts.sh"
    words = ["bash", str(script), "exec", host, "strace", "-ff", "-qq", "-s", "300", "-o", "/tmp/trace/t"]
    tracer = subprocess.Popen(
        [*words, "-e", f"trace={CALLS}", "-p", pid],
        env=testhosts.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(100):
            if "TracerPid:\t0" not in testhosts.sh(host, f"grep TracerPid /proc/{pid}/status").stdout:
                break
            time.sleep(0.05)
        yield testhosts.state / host / "fs" / "p" / "tmp" / "trace"
        time.sleep(0.5)
    finally:
        # the tracer inside, by its pid: whoever started it stands between, and would leave it there
        stop = f"kill $(sed -n 's/^TracerPid:[[:space:]]*//p' /proc/{pid}/status)"
        testhosts.sh(host, stop, check=False)
        tracer.wait(timeout=10)


def processes(folder: Path) -> dict[int, list[str]]:
    """pid -> its lines, for the processes that orch started: each from its first exec of what is not sshd."""
    lines = {int(path.suffix[1:]): path.read_text(errors="replace").splitlines() for path in folder.iterdir()}
    mine: dict[int, list[str]] = {}
    for pid, said in lines.items():
        for index, line in enumerate(said):
            started = EXEC.match(line)
            if started and not started[1].endswith("sshd"):
                mine[pid] = said[index:]
                break
    waiting = list(mine)
    while waiting:
        for line in mine[waiting.pop()]:
            found = STARTS.match(line)
            child = int(found[1]) if found else 0
            if child in lines and child not in mine:
                mine[child] = lines[child]
                waiting.append(child)
    return mine


def offences(mine: dict[int, list[str]]) -> list[str]:
    """The calls that promise 1 forbids, as strace wrote them."""
    found = []
    for pid, said in mine.items():
        memory = _memory_files(said)
        found += [
            f"{pid}: {line}" for index, line in enumerate(said) if index not in memory and _forbidden(line, set(mine))
        ]
    return found


def _memory_files(said: list[str]) -> set[int]:
    """Numbers of the lines that set the mode of a memory file: of no file system, so no promise speaks of it."""
    descriptors: set[str] = set()
    found = set()
    for index, line in enumerate(said):
        if made := MEMORY_FILE.match(line):
            descriptors.add(made[1])
        elif opened := OPENED.match(line):
            descriptors.discard(opened[3])
        elif (mode := MODE_OF.match(line)) and mode[1] in descriptors:
            found.add(index)
    return found


def _forbidden(line: str, own: set[int]) -> bool:
    name = line.split("(", 1)[0]
    if line.startswith(("+++", "---")) or " = -1 " in line:
        return False
    if opened := OPENED.match(line):
        path, flags = opened[1], opened[2]
        writes = name == "creat" or any(flag in flags for flag in WRITES)
        gpu = path.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri"))
        return gpu or (writes and not HARMLESS.match(path))
    if name in SIGNALS:
        sent = SIGNAL.match(line)
        return sent is None or (sent[3] != "0" and abs(int(sent[1])) not in own)
    if LOCK.match(line):
        return True
    return name not in READS
