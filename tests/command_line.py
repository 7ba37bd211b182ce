"""The program as a user runs it, without the settings of the tests in its environment.

`mixerloop` runs a verb in this process, which saves the three seconds in which torch is imported.
`in_a_process` starts a process: for signals, kills, pipes and whatever happens before `main`.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch

import shape_checks
from mixerloop import machine, start
from mixerloop.cli.main import main
from mixerloop.ops import native_library

INSTRUCTION_SET_LIMITS = ("ATEN_CPU_CAPABILITY", native_library.SET_VARIABLE)
"""A process computes the same bits as the tests' own process only under the same limits."""
COMMAND = (sys.executable, "-P", "-m", "mixerloop")


@dataclass(frozen=True)
class Ended:
    """Exit code and output of a program, named as in `subprocess.CompletedProcess`."""

    returncode: int
    stdout: str
    stderr: str


def environment(home) -> dict[str, str]:
    """The environment variables of a program that the tests start."""
    limits = {name: os.environ[name] for name in INSTRUCTION_SET_LIMITS if name in os.environ}
    return {
        **machine.waiting(),
        **limits,
        "PATH": os.environ["PATH"],
        "HOME": str(Path(home).resolve()),
        "COLUMNS": "80",
        "OMP_NUM_THREADS": "1",
    }


def mixerloop(*arguments, cwd=".", code=0) -> Ended:
    """Run a verb as `mixerloop ARGUMENTS` in a folder would, and expect its exit code."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        with _written_to(stdout, 1), _written_to(stderr, 2), _as_a_program(arguments, cwd):
            try:
                main()
                returncode = 0
            except SystemExit as stop:
                returncode = stop.code or 0
                assert isinstance(returncode, int), returncode
        ended = Ended(returncode, _content(stdout), _content(stderr))
    assert ended.returncode == code, ended.stderr
    return ended


def in_a_process(*arguments, cwd=".", code=0) -> subprocess.CompletedProcess[str]:
    """Run a verb in a process of its own, and expect its exit code."""
    ended = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        env=environment(cwd),
    )
    assert ended.returncode == code, ended.stderr
    return ended


def refused(*arguments, cwd=".", after=()) -> str:
    """The error line with which a verb exits, after no other output than these progress lines."""
    ended = mixerloop(*arguments, cwd=cwd, code=2)
    *progress, line = (ended.stdout + ended.stderr).splitlines()
    assert set(progress) <= set(after)
    assert line.startswith("mixerloop: ")
    return line


@contextlib.contextmanager
def _as_a_program(arguments, cwd) -> Iterator[None]:
    """Set the state of a new process, and restore the state of this process afterwards."""
    heard = {number: signal.getsignal(number) for number in start.STOPPING}
    threads, variables = torch.get_num_threads(), environment(cwd)
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(cwd))
        stack.enter_context(mock.patch.dict(os.environ, variables, clear=True))
        stack.enter_context(mock.patch.object(sys, "argv", ["mixerloop", *map(str, arguments)]))
        for name, number in (("stdout", 1), ("stderr", 2)):
            stream = open(number, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            stack.enter_context(mock.patch.object(sys, name, stack.enter_context(stream)))
        stack.enter_context(mock.patch.object(sys, "unraisablehook", sys.unraisablehook))
        stack.enter_context(shape_checks.off())
        # keep_freed_memory changes the allocator of the whole process for good.
        stack.enter_context(mock.patch.object(machine, "keep_freed_memory"))
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            for number, handler in heard.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def _written_to(file, descriptor) -> Iterator[None]:
    """Send a descriptor's output to a file: that of compiled code and of children, too."""
    before = os.dup(descriptor)
    os.dup2(file.fileno(), descriptor)
    try:
        yield
    finally:
        os.dup2(before, descriptor)
        os.close(before)


def _content(file) -> str:
    file.seek(0)
    return file.read().decode()
