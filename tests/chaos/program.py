"""A verb in a forked child, from a process that has already imported torch and the program.

Importing torch takes longer than most cases, so one process imports everything, starts no thread,
and forks a child for every case. The child sets the state of a new process and calls `main`.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import importlib.util
import os
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mixerloop import machine

LAZY = (
    *("tensorboard.compat.proto.event_pb2", "tensorboard.summary.writer.record_writer"),
    *("sentencepiece", "zipfile", "tarfile", "yaml", "rich.table", "torch._dynamo"),
)
"""Packages that verbs import when they run."""
LAZY_SLOW = ("altair", "vl_convert", "pyarrow.parquet", "jinja2", "transformers", "tokenizers")
"""Packages that only slow verbs import."""
OWN_PROCESS = ("mixerloop.__main__", "mixerloop.studies.on_ray", "mixerloop.interop.lm_eval")
"""Modules that start the program, or need a package that no case needs."""
OWN_SLOW = ("mixerloop.interop.hf", "mixerloop.benchmarking", "mixerloop.reports")
"""Modules that only slow verbs import."""

CPU_SECONDS, WALL_SECONDS = 20, 60
"""A child hangs if it uses more processor time or takes longer than this.

A busy child on a loaded machine gets its 20 seconds of processor time; a sleeping child is ended
after 60 seconds, because only a loaded machine makes a working child wait that long.
"""
ORPHAN_SECONDS = 3  # until the processes that a verb started have noticed that it ended
MEMORY_BYTES = 4 * 2**30  # of private memory, so that a huge option cannot take the machine down
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2
PR_CAPBSET_DROP = 24
CAPABILITY_VERSION = 0x20080522


@dataclass(frozen=True)
class Ended:
    """How a child ended: a negative code is a signal, `hung` says which limit it passed."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    hung: str | None = None
    orphans: bool = False
    """Whether processes that the verb started outlived it."""


def preload(*, quick: bool) -> None:
    """Import what verbs import, without starting a thread; `quick` is for quick verbs only."""
    os.environ[machine.NUM_THREADS] = "1"
    machine.settle()
    import torch

    torch.set_num_threads(1)
    for name in (*_own_modules(quick=quick), *LAZY, *(() if quick else LAZY_SLOW)):
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)
    from mixerloop.training import speed

    speed.MOST_SECONDS = 0.01  # each session of training times the machine: briefly, here
    assert threading.active_count() == 1, threading.enumerate()
    gc.collect()
    gc.freeze()


def _own_modules(*, quick: bool) -> list[str]:
    """The modules of the program that verbs import."""
    root = Path(machine.__file__).parent
    names = [
        ".".join(("mixerloop", *path.relative_to(root).with_suffix("").parts))
        for path in sorted(root.rglob("*.py"))
        if path.name != "__init__.py"
    ]
    without = OWN_PROCESS + (OWN_SLOW if quick else ())
    if importlib.util.find_spec("transformers") is None:
        without += ("mixerloop.interop.hf",)
    return [name for name in names if not name.startswith(without)]


def obey_permissions() -> bool:
    """Make root's processes obey the permissions of files; returns whether they do."""
    if os.geteuid() != 0:
        return True
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; low words, high words
    if libc.capget(header, sets) != 0:
        return False
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
        for word in range(3):
            sets[word] &= ~(1 << capability)
    return libc.capset(header, sets) == 0


def run(
    arguments: Sequence[str],
    box: Path,
    *,
    before: Callable[[], None] | None = None,
    interrupt_after: float | None = None,
) -> Ended:
    """Run a verb in a folder; `interrupt_after` sends SIGINT after so many seconds."""
    streams = [box.parent / f"{box.name}.{name}" for name in ("stdout", "stderr")]
    sys.stdout.flush()
    sys.stderr.flush()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        _be_the_program(arguments, box, streams, before)
    status, hung = _wait(child, started, interrupt_after)
    seconds = time.monotonic() - started
    orphans = _end_group(child)
    stdout, stderr = (path.read_text(encoding="utf-8", errors="replace") for path in streams)
    for path in streams:
        path.unlink()
    code = os.waitstatus_to_exitcode(status)
    return Ended(code, stdout, stderr, seconds, hung=hung, orphans=orphans)


def _wait(child: int, started: float, interrupt_after: float | None) -> tuple[int, str | None]:
    pause = 0.001
    hung = None
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status, hung
        seconds = time.monotonic() - started
        if interrupt_after is not None and seconds > interrupt_after:
            os.kill(child, signal.SIGINT)
            interrupt_after = None
        if hung is None and (hung := _limit_passed(child, seconds)) is not None:
            os.killpg(child, signal.SIGKILL)
        time.sleep(pause)
        pause = min(2 * pause, 0.01)


def _limit_passed(child: int, seconds: float) -> str | None:
    if seconds > WALL_SECONDS:
        return f"not ended after {WALL_SECONDS} s"
    if seconds > CPU_SECONDS and _cpu_seconds(child) > CPU_SECONDS:
        return f"not ended after {CPU_SECONDS} s of processor time"
    return None


def _cpu_seconds(process: int) -> float:
    """Processor time of a process and of its children that have ended."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _end_group(group: int) -> bool:
    """End what a verb has left running; returns whether there was anything."""
    deadline = time.monotonic() + ORPHAN_SECONDS
    while _has_members(group):
        if time.monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
            return True
        time.sleep(0.01)
    return False


def _has_members(group: int) -> bool:
    """Whether a process of the group runs; a zombie only waits for its parent."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended meanwhile
            state, _, of_group = path.read_text().rpartition(")")[2].split()[:3]
            if int(of_group) == group and state != "Z":
                return True
    return False


def environment(box: Path) -> dict[str, str]:
    """The environment variables of a case: nothing of the user's own."""
    return {
        **machine.waiting(),
        "PATH": os.environ["PATH"],
        "HOME": str(box / "home"),
        "TMPDIR": str(box / "tmp"),
        "COLUMNS": "80",
        machine.NUM_THREADS: "1",
        "HF_HUB_OFFLINE": "1",
    }


def _be_the_program(
    arguments: Sequence[str], box: Path, streams: Sequence[Path], before: Callable[[], None] | None
) -> None:
    """Run `main` with the state of a new process, and end this process as Python would."""
    code = 70
    try:
        os.setsid()
        for number, path in zip((1, 2), streams, strict=True):
            _redirect(path, number, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        _redirect(Path(os.devnull), 0, os.O_RDONLY)
        os.chdir(box)
        variables = environment(box)
        os.environ.clear()
        os.environ.update(variables)
        tempfile.tempdir = None
        sys.argv = ["mixerloop", *arguments]
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        sys.stderr.reconfigure(line_buffering=True)
        sys.modules["__main__"] = types.ModuleType("__main__")  # spawned workers import it
        signal.signal(signal.SIGINT, signal.default_int_handler)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        if before is not None:
            before()
        code = _code_of_main()
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
        code = 70
    finally:
        os._exit(code)


def _code_of_main() -> int:
    from mixerloop.cli.main import main

    try:
        main()
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _redirect(path: Path, number: int, flags: int) -> None:
    descriptor = os.open(path, flags, 0o644)
    os.dup2(descriptor, number)
    os.close(descriptor)
