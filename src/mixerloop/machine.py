"""Facts about this machine, and settings that must be made before torch is loaded."""

import ctypes
import os
import platform
import re
import resource
import signal
import sys
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

TILE_LEAF = 0x1D  # the CPUID leaf in which AMX describes its tiles
ISA_LIMIT = "ONEDNN_MAX_CPU_ISA"
ISA_WITHOUT_AMX = "AVX512_CORE_FP16"  # the largest set below AMX
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # numbers of glibc's mallopt
TOP_PAD_BYTES = 64 * 2**20


WAITING = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "0"}
"""How long an idle OpenMP thread spins before sleeping: GNU's runtime in turns of its loop, which
is tens of microseconds; LLVM's and Intel's in milliseconds."""
WAITING_CHOICES = (*WAITING, "OMP_WAIT_POLICY")
NUM_THREADS = "OMP_NUM_THREADS"
PARENT = "MIXERLOOP_PARENT"
"""The id of the parent process, with which this process ends."""
PARENT_DEATH_SIGNAL = 1  # of Linux's prctl
GROUPS, OWN_GROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def settle() -> None:
    """Make torch's threads give up a core they wait on; call this before `import torch`.

    OpenMP threads spin for milliseconds by default. Beside another busy program some thread is
    always waiting for a core while the others burn theirs, and training falls to a fraction of its
    speed. The commands call this function when they start; `import mixerloop` does not. A
    choice of the user in the environment stands.
    """
    keep_off_hidden_amx()
    if any(name in os.environ for name in WAITING_CHOICES):
        return
    if "torch" in sys.modules:
        raise ValueError("mixerloop.settle() comes too late: torch is loaded; call it before that")
    os.environ.update(WAITING)


def waiting() -> dict[str, str]:
    """The variables that decide how threads wait and how many there are, as far as they are set."""
    names = (*WAITING_CHOICES, NUM_THREADS)
    return {name: os.environ[name] for name in names if name in os.environ}


def chosen_threads() -> int | None:
    """The number of threads the user has chosen in the environment, for the outermost level."""
    first = os.environ.get(NUM_THREADS, "").split(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else None


def end_with_parent() -> None:
    """Have Linux kill this process when its parent ends, if the parent has set `PARENT`."""
    parent = os.environ.pop(PARENT, None)
    if parent is None or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if str(os.getppid()) != parent:  # the parent ended before prctl
        sys.exit(f"process {parent}, which started this one, is gone")


def free_bytes() -> int | None:
    """Memory that new work can take without swapping; None where the system does not say.

    Limits of a container or batch system (cgroups) and of the shell (`ulimit -v`) count as well.
    """
    left = [_available_bytes(), _bytes_left_by_limits(), *_bytes_left_by_groups()]
    return min((max(0, num_bytes) for num_bytes in left if num_bytes is not None), default=None)


def _available_bytes() -> int | None:
    found = _number(Path("/proc/meminfo"), r"^MemAvailable:\s*(\d+) kB$")
    return None if found is None else found * 1024


def _bytes_left_by_limits() -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    used = _number(Path("/proc/self/statm"), r"^(\d+) ")
    if limit == resource.RLIM_INFINITY or used is None:
        return None
    return limit - used * resource.getpagesize()


RECLAIMABLE = ("inactive_file", "active_file", "slab_reclaimable")
"""Kinds of memory in a group's memory.stat that the system takes back when it is needed."""


def _bytes_left_by_groups() -> Iterator[int]:
    """What each group that this process is in may still take, without its page cache."""
    named = OWN_GROUP.read_text() if OWN_GROUP.exists() else ""
    own = re.search(r"^0::/(.*)$", named, re.MULTILINE)
    if own is None:
        return
    group = GROUPS / own[1]
    for folder in (group, *group.parents):
        limit = _number(folder / "memory.max", r"^(\d+)$")
        used = _number(folder / "memory.current", r"^(\d+)$")
        if limit is not None and used is not None:
            kinds = (rf"^{kind} (\d+)$" for kind in RECLAIMABLE)
            yield limit - used + sum(_number(folder / "memory.stat", kind) or 0 for kind in kinds)
        if folder == GROUPS:
            return


def _number(path: Path, pattern: str) -> int | None:
    """The number in a file of the system; None if there is no such file, or nothing fits."""
    try:
        found = re.search(pattern, path.read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if found is None else int(found[1])


def num_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def keep_off_hidden_amx() -> None:
    """Keep torch off AMX where AMX would raise an illegal instruction.

    Some virtual machines announce AMX and hide the CPUID leaf that describes its tiles. Without
    tiles the first bfloat16 product of oneDNN kills the process. oneDNN reads the limit at its
    first computation, so the limit is set before; a limit the user has set is left alone.
    """
    if _amx_is_announced_but_hidden(_cpuinfo()):
        os.environ.setdefault(ISA_LIMIT, ISA_WITHOUT_AMX)


def keep_freed_memory() -> None:
    """Let this process reuse freed memory instead of returning the memory to the system.

    glibc returns large blocks to the system when they are freed, and the next tensor pays for fresh
    pages: a tenth of a training step. Elsewhere nothing happens. For programs, not for imports.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    libc.mallopt(M_TOP_PAD, TOP_PAD_BYTES)


class Neighbours:
    """Watches, from now on, how busy others keep the cores this process may run on."""

    def __init__(self) -> None:
        self._began, self._busy, self._own = time.monotonic(), _busy_seconds(), _own_seconds()

    def busy_cores(self) -> float | None:
        """The average number of cores in use by others so far; None where it is not known."""
        busy = _busy_seconds()
        if busy is None or self._busy is None:
            return None
        others = busy - self._busy - (_own_seconds() - self._own)
        return max(0.0, others / max(1e-3, time.monotonic() - self._began))


def _busy_seconds() -> float | None:
    """Time that everything has used of the cores we may run on, stolen time included."""
    path = Path("/proc/stat")
    if not path.exists():
        return None
    ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    ticks = 0
    for line in path.read_text().splitlines():
        name, *fields = line.split()
        if name in ours:
            user, nice, system, _idle, _wait, *others = fields[:8]
            ticks += sum(map(int, (user, nice, system, *others)))
    return ticks / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def facts() -> dict[str, Any]:
    """The properties of this machine that provenance records."""
    model = _field(_cpuinfo(), "model name")
    return {
        "system": platform.system(),
        "processor": model or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "isa_limit": os.environ.get(ISA_LIMIT),
        "waiting": waiting(),
    }


def _amx_is_announced_but_hidden(cpuinfo: str) -> bool:
    highest_leaf = _field(cpuinfo, "cpuid level")
    announced = "amx_tile" in _field(cpuinfo, "flags").split()
    return announced and highest_leaf.isdigit() and int(highest_leaf) < TILE_LEAF


@lru_cache
def _cpuinfo() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text() if path.exists() else ""


def _field(cpuinfo: str, name: str) -> str:
    """The first core's value of a field, or nothing."""
    field = re.search(rf"^{name}\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
    return field[1].strip() if field else ""
