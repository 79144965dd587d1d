"""What an evaluation may take of its host: GPUs hidden, threads capped, lowest priority, memory held by the best means
that the host offers. What was reached is read back from the running process and reported as its rung."""

import os
import re
import signal
from typing import Dict, List, Optional, Set

from remote_payload.agent import hostinfo, identity, quiet

HIDDEN_GPUS = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "HIP_VISIBLE_DEVICES": "-1",
    "ROCR_VISIBLE_DEVICES": "-1",
    "GPU_DEVICE_ORDINAL": "-1",
    "ZE_AFFINITY_MASK": "255",
    "ONEAPI_DEVICE_SELECTOR": "*:cpu",
    "ASCEND_RT_VISIBLE_DEVICES": "-1",
    "MUSA_VISIBLE_DEVICES": "-1",
    "HABANA_VISIBLE_DEVICES": "-1",
    "NVIDIA_VISIBLE_DEVICES": "void",
    "JAX_PLATFORMS": "cpu",
}
"""CUDA, HIP, ROCm, OpenCL on AMD, Level Zero, SYCL, and others' accelerators: an index that no host has. PyTorch opens
no device with -1 (a large positive CUDA index would open some)."""
_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMEXPR_MAX_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "TORCH_NUM_THREADS",
    "RAYON_NUM_THREADS",
)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def thread_environment(threads: Optional[int]) -> Dict[str, str]:
    """Variables that cap the thread pools of common libraries. `None` means the cores that this process may use."""
    return dict.fromkeys(_THREADS, str(threads or hostinfo.cpus()))


def _own_group(controller: str) -> Optional[hostinfo.Cgroup]:
    membership, mounts = (identity.read_proc("/proc/self/" + name) or b"" for name in ("cgroup", "mountinfo"))
    return hostinfo.cgroup_of(controller, membership.decode("utf-8", "replace"), mounts.decode("utf-8", "replace"))


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def oom_kills(folder: str = "") -> int:
    """How often the kernel has killed for want of memory: in a cgroup's folder, else on the whole host."""
    for path in ([folder + "/memory.events", folder + "/memory.oom_control"] if folder else []) + ["/proc/vmstat"]:
        try:
            with open(path) as file:
                found = re.search(r"^oom_kill (\d+)$", file.read(), re.MULTILINE)
        except OSError:
            continue
        if found:
            return int(found.group(1))
    return 0


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parents end, so that none gets out of sight."""
    _libc_call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _libc_call(name: str, *arguments: int) -> None:
    import ctypes

    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    function(*(ctypes.c_long(argument) for argument in arguments))


class Cage:
    """The limits of one evaluation. Built by its supervisor, entered by the child before it becomes the evaluation."""

    def __init__(
        self,
        name: str,
        memory_limit: Optional[int],
        threads: Optional[int] = None,
        cores: Optional[Set[int]] = None,
    ) -> None:
        """`threads` caps the time of cores that it gets, `cores` says which ones; None leaves it free."""
        self.memory_limit = memory_limit
        self._threads = threads
        self._cores = cores
        self._groups: List[str] = []
        self._held: Set[str] = set()
        """settings of its groups that the host took"""
        self.memory_group = ""
        """folder of the cgroup that holds the memory limit; "" where the supervisor has to look itself"""
        self._name = "%s-%d" % (name, os.getpid())

    def build(self) -> None:
        """Make its cgroups, where this user may."""
        cpu, memory = _own_group("cpu"), _own_group("memory")
        for group in filter(None, (cpu, memory)):
            _sweep(group.folder)
        quota = {"cpu.cfs_quota_us": str(self._threads * 100_000)} if self._threads else {}
        if cpu and cpu.version == 1:
            self._add_group(cpu.folder, {"cpu.shares": "2"}, quota)
        if memory and self.memory_limit:
            limit = str(self.memory_limit)
            wished = {"memory.memsw.limit_in_bytes": limit}  # swap counts too
            if memory.version == 2:
                wished = {"memory.swap.max": "0", "memory.oom.group": "1", "cpu.weight": "1"}
                wished.update({"cpu.max": "%d 100000" % (self._threads * 100_000)} if self._threads else {})
            name = "memory.limit_in_bytes" if memory.version == 1 else "memory.max"
            self.memory_group = self._add_group(memory.folder, {name: limit}, wished)
        elif cpu and cpu.version == 2:
            quota = {"cpu.max": "%d 100000" % (self._threads * 100_000)} if self._threads else {}
            self._add_group(cpu.folder, {"cpu.weight": "1"}, quota)

    def _add_group(self, parent: str, needed: Dict[str, str], wished: Dict[str, str]) -> str:
        folder = "%s/orch-%s" % (parent, self._name)
        try:
            os.mkdir(folder)
        except FileExistsError:
            pass
        except OSError:
            return ""
        try:
            for key, value in needed.items():
                _write("%s/%s" % (folder, key), value)
        except OSError:
            _remove(folder)
            return ""
        for key, value in wished.items():
            try:
                _write("%s/%s" % (folder, key), value)
            except OSError:
                continue
            self._held.add(key)
        self._held.update(needed)
        self._groups.append(folder)
        return folder

    def enter(self) -> None:
        """Called in the child, in its own session. What the host does not allow is left out; `rung` tells."""
        for group in self._groups:
            _attempt(_write, group + "/cgroup.procs", "0")
        quiet.be_quiet()
        if self._cores:
            _attempt(os.sched_setaffinity, 0, self._cores)
        _attempt(_libc_call, "prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        _attempt(self._limit_resources)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])

    def _limit_resources(self) -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if self.memory_limit and not self.memory_group:
            # A backstop behind the supervisor's looks; thread stacks count as data, touched or not.
            ceiling = self.memory_limit + max(self.memory_limit // 4, 1 << 30)
            resource.setrlimit(resource.RLIMIT_DATA, (ceiling, ceiling))

    def rung(self, pid: int) -> str:
        """What holds process `pid`, read back from the kernel."""
        held = ["GPUs hidden"]
        if self.memory_limit:
            held.append("memory by cgroup" if self.memory_group else "memory by polling and rlimit")
        if self._threads:
            quota = self._held & {"cpu.cfs_quota_us", "cpu.max"}
            held.append("cores by cgroup" if quota else "cores by its thread settings")
        try:
            held.append("nice %d" % os.getpriority(os.PRIO_PROCESS, pid))
            with open("/proc/%d/autogroup" % pid) as file:
                held.append("autogroup" + file.read().strip().partition(" ")[2].replace("nice", ""))
        except OSError:
            pass
        if self._held & {"cpu.shares", "cpu.weight"}:
            held.append("least cpu share")
        if self._cores:
            held.append("cores " + ",".join(map(str, sorted(self._cores))))
        if identity.read_proc("/proc/%d/oom_score_adj" % pid) == b"1000\n":
            held.append("first to go when memory runs out")
        return ", ".join(held)

    def close(self) -> None:
        """Remove the cgroups; the evaluation has ended."""
        for group in self._groups:
            _remove(group)


def _attempt(action: "object", *arguments: object) -> None:
    try:
        action(*arguments)  # type: ignore[operator]
    except (OSError, ValueError, AttributeError):
        pass


def _sweep(parent: str) -> None:
    """Remove the empty groups of supervisors that were killed."""
    try:
        names = os.listdir(parent)
    except OSError:
        return
    for name in names:
        pid = name.rpartition("-")[2]
        if name.startswith("orch-") and pid.isdigit() and not os.path.exists("/proc/" + pid):
            _remove("%s/%s" % (parent, name))


def _remove(folder: str) -> None:
    try:
        os.rmdir(folder)
    except OSError:
        pass
