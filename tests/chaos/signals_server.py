"""A process with all modules imported, from which verbs are forked in milliseconds.

A forked verb has a process group of its own and the signal handlers of a new interpreter, and runs
`mixerloop.__main__.main`. It leaves out what an interpreter does at its start and at its end, which
takes a second each with torch: for these phases there are real processes.
"""

import atexit
import contextlib
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self

from chaos import signals_hook
from chaos.signals_hook import Hook
from mixerloop import machine, start

TESTS = Path(__file__).parents[1]
NOT_IMPORTED = (
    *("mixerloop.interop.hf", "mixerloop.interop.lm_eval", "mixerloop.studies.on_ray"),
    *("mixerloop.__main__", "mixerloop.ops._native"),
)
"""Modules of optional packages, the program itself, and a library that is no module."""
POLL_SECONDS = 0.002
COMMAND = (sys.executable, "-m", "mixerloop")
PATIENCE = 120.0
"""Seconds after which a process counts as hanging."""


@dataclass
class Started:
    """A process that was forked; the same methods as of `subprocess.Popen`."""

    server: "Server"
    pid: int
    stdout: Path
    stderr: Path
    returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative after a signal; None while the process runs."""
        if self.returncode is None:
            self.returncode = self.server.ask({"poll": self.pid})
        return self.returncode

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait for the end of the process; it is killed after the timeout."""
        code = self.wait_at_most(timeout)
        if code is None:
            self.kill_group()
            raise TimeoutError(f"process {self.pid} did not end in {timeout:.0f} s")
        return code

    def wait_at_most(self, timeout: float) -> int | None:
        """Wait for the end of the process; None after the timeout."""
        deadline = time.monotonic() + timeout
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill_group(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the process and everything it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


def environment(home: Path) -> dict[str, str]:
    """The environment variables of a verb: those of command_line.py, which would import torch."""
    limits = ("ATEN_CPU_CAPABILITY", "MIXERLOOP_INSTRUCTION_SET")
    return {
        **machine.waiting(),
        **{name: os.environ[name] for name in limits if name in os.environ},
        "PATH": os.environ["PATH"],
        "HOME": str(home.resolve()),
        "COLUMNS": "80",
        machine.NUM_THREADS: "1",
    }


class Server:
    """The client's side of the process that forks."""

    def __init__(self, home: Path) -> None:
        ours, theirs = socket.socketpair()
        self.home = home
        variables = environment(home) | {"PYTHONPATH": str(TESTS)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chaos.signals_server", str(theirs.fileno())],
            env=variables,
            cwd=home,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self._socket, self._file = ours, ours.makefile("r")
        assert self._file.readline() == "ready\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()
        self._process.wait()

    def ask(self, request: Mapping[str, Any]) -> Any:
        """Send a request and return the server's answer."""
        self._socket.sendall((json.dumps(request) + "\n").encode())
        return json.loads(self._file.readline())

    def start(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        output: Path,
        variables: Mapping[str, str] | None = None,
        hook: Hook | None = None,
        ignored: Sequence[int] = (),
        stdout: Path | None = None,
        stderr: Path | None = None,
    ) -> Started:
        """Fork a verb; its stdout and stderr go to files in `output` unless said otherwise."""
        output.mkdir(parents=True, exist_ok=True)
        to = {"stdout": stdout or output / "stdout", "stderr": stderr or output / "stderr"}
        pid = self.ask(
            {
                "arguments": list(arguments),
                "cwd": str(cwd),
                "environment": environment(cwd) | dict(variables or {}),
                "hook": None if hook is None else hook.to_json(),
                "ignored": list(ignored),
                **{name: str(path) for name, path in to.items()},
            }
        )
        return Started(self, pid, to["stdout"], to["stderr"])


def serve(descriptor: int) -> bool:
    """Answer requests until the client is gone; returns whether this is a forked process."""
    with socket.socket(fileno=descriptor) as connection:
        requests = connection.makefile("r")
        connection.sendall(b"ready\n")
        for line in requests:
            request = json.loads(line)
            if "poll" in request:
                answer = _poll(request["poll"])
            else:
                ready, readied = os.pipe()
                answer = os.fork()
                if answer == 0:
                    os.close(ready)
                    become(request)
                    os.close(readied)
                    return True
                os.close(readied)
                os.read(ready, 1)  # returns when the process has closed its end
                os.close(ready)
            connection.sendall((json.dumps(answer) + "\n").encode())
    return False


def _poll(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def become(request: dict[str, Any]) -> None:
    """Give a forked process the state in which a shell would start it."""
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["mixerloop", *request["arguments"]]
    sys.modules["__main__"] = types.ModuleType("__main__")  # workers that prepare data import it
    for number, name, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["stdout"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, request["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        opened = os.open(name, flags, 0o644)
        os.dup2(opened, number)
        os.close(opened)
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    start.begin()  # an earlier signal would meet Python's own handlers
    if request["hook"] is not None:
        signals_hook.install(Hook.from_json(request["hook"]))


def import_everything() -> None:
    """Import all modules of the package, and check that no thread has been started."""
    import mixerloop

    for module in pkgutil.walk_packages(mixerloop.__path__, "mixerloop."):
        if not module.name.startswith(NOT_IMPORTED):
            importlib.import_module(module.name)
    for name in ("altair", "jinja2", "vl_convert", "tensorboard.summary.writer.record_writer"):
        importlib.import_module(name)
    from mixerloop.training import speed

    speed.MOST_SECONDS = 0.01  # each session of training times the machine: briefly, here
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"{threads} threads do not survive a fork"


def run_verb() -> NoReturn:
    """Run the verb of this process, and end the process without freeing every object."""
    from mixerloop.__main__ import main as verb

    try:
        verb()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = 120
    os._exit(code)


def main() -> None:
    """Serve; in a forked process, run the verb."""
    import_everything()
    if serve(int(sys.argv[1])):
        run_verb()
    os._exit(0)


if __name__ == "__main__":
    main()
