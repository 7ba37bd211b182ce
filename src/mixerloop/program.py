"""Signals, errors and exit codes of our processes.

The command line is such a process, and so is the process of a study's cell.
"""

import errno
import os
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from mixerloop import machine, start
from mixerloop.files import readable_size
from mixerloop.messages import one_line
from mixerloop.progress_line import end_open_line

TRACEBACK = "MIXERLOOP_TRACEBACK"
"""Set this environment variable to see the traceback of an error."""
AGAIN_SECONDS = 0.02
IMPORT_SECONDS = 10.0
"""A signal waits as long as this for a running import, which an exception would tear apart."""
CLEANING_SECONDS = 5.0
"""While half-written files are removed, further signals are ignored for as long as this."""
NO_MEMORY = (
    *("can't allocate memory", "out of memory", "std::bad_alloc", "can't start new thread"),
    "failed to map segment",  # of a library that is imported
)
TOO_LARGE = ("Storage size calculation overflowed", "integer multiplication overflow")
"""Parts of the messages of torch and Python that name a limit of the machine, not a bug."""


def run_program(work: Callable[[], None]) -> None:
    """Run the work of this process; bad input becomes one line on stderr and exit code 2.

    SIGTERM and SIGHUP raise SystemExit, so that half-written files are removed, and exit with 143
    and 129. Ctrl-C exits with 130, and a failed numerical check with 1. A signal that the parent
    process had this process ignore stays ignored. A full or closed stderr does not stop the work.
    """
    global _listener
    start.begin()
    _listener = Listener()
    for number in start.heard():
        signal.signal(number, _listener.stop)
    sys.unraisablehook = _listener.deliver_again
    try:
        try:
            code = _exit_code(work)
        finally:
            _listener.is_done = True
    except (KeyboardInterrupt, SystemExit):  # the signal came after the work had failed
        code = 128 + (_listener.raised or signal.SIGINT)
    if code := _flushed(code):
        sys.exit(code)


def is_stopping() -> bool:
    """Whether a signal is ending the work of this process.

    Compiled code can turn the exception of a signal into another exception. Whoever catches all
    exceptions asks this function before going on.
    """
    return _listener.raised is not None


def _exit_code(work: Callable[[], None]) -> int:
    try:
        machine.end_with_parent()
        _check_folder()
        work()
        sys.stdout.flush()
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 128 + signal.SIGINT
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(one_line(stop.code), file=sys.stderr)
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except Exception as error:
        if isinstance(error, BrokenPipeError) and error.filename == start.STDOUT:
            return 0  # the reader has exited, as in `mixerloop describe 15m | head -1`
        if _listener.raised is not None:
            return 128 + _listener.raised
        problem = _problem(error)
        if problem is None or os.environ.get(TRACEBACK):
            raise
        end_open_line()
        rank = f" (rank {os.environ['RANK']})" if "RANK" in os.environ else ""
        print(f"mixerloop{rank}: {one_line(problem)}", file=sys.stderr)
        return 1 if isinstance(error, FloatingPointError) else 2
    return 0


def _check_folder() -> None:
    """Reject a current folder that was removed: torch ends the process there while it loads."""
    try:
        os.getcwd()  # noqa: PTH109  # `Path.cwd` is this call
    except FileNotFoundError:
        raise ValueError(
            "the current folder was removed; change to a folder that is there"
        ) from None


def _flushed(code: int) -> int:
    """The exit code after what was printed is flushed; a stdout that cannot be written to is 2."""
    try:
        sys.stdout.flush()
    except OSError as error:
        if isinstance(sys.stdout, start.Output):
            sys.stdout.drop()
        if isinstance(error, BrokenPipeError) or code != 0:
            return code
        print(f"mixerloop: {one_line(_problem(error) or '')}", file=sys.stderr)
        return 2
    return code


class Listener:
    """Turns signals into exceptions in the main thread, and makes sure that none is lost."""

    def __init__(self) -> None:
        self.raised: int | None = None
        """The signal whose exception was raised."""
        self.is_done = False
        """Whether the work has ended, so that nothing is left to clean up."""
        self._heard_at: float | None = None
        self._raised_at: float | None = None

    def stop(self, number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt or SystemExit; wait for an import, and for the cleaning up."""
        if self.is_done:
            start.leave(number, frame)
        now = time.monotonic()
        if self._raised_at is not None and now - self._raised_at < CLEANING_SECONDS:
            return
        if self._heard_at is None:
            self._heard_at = now
        if _is_importing(frame) and now - self._heard_at < IMPORT_SECONDS:
            _send_again(number)
            return
        self.raised, self._raised_at = number, now
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + number)

    def deliver_again(self, lost: "sys.UnraisableHookArgs") -> None:
        """Send a signal again if its exception was raised where Python drops exceptions.

        Python drops exceptions in finalizers and callbacks. Importing torch runs many of these, so
        Ctrl-C would otherwise be ignored.
        """
        if self.raised is None or lost.exc_type not in (KeyboardInterrupt, SystemExit):
            sys.__unraisablehook__(lost)
            return
        number, self.raised, self._raised_at = self.raised, None, None
        _send_again(number)


_listener = Listener()
"""The listener of this process; before `run_program` it has heard nothing."""


def _send_again(number: int) -> None:
    timer = threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), number))
    timer.daemon = True
    timer.start()


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _free_space(number: int | None, where: str) -> str:
    if number not in (errno.ENOSPC, errno.EDQUOT) or where in (start.STDOUT, start.STDERR):
        return ""
    folder = next((one for one in Path(where).absolute().parents if one.is_dir()), Path("/"))
    return f"; {readable_size(shutil.disk_usage(folder).free)} are free"


def _problem(error: Exception) -> str | None:
    """What is wrong with the input or the machine; None for an error that only we can make."""
    if isinstance(error, OSError) and error.strerror is not None:
        named = error.filename if error.filename2 is None else error.filename2
        if named is None and error.errno == errno.EMFILE:
            most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            return f"this process needs more than {most} open files and pipes; raise ulimit -n"
        where = "reading or writing a file" if named is None else os.fsdecode(named)
        return f"{where}: {error.strerror}{_free_space(error.errno, where)}"
    if isinstance(error, ValueError | OSError | FloatingPointError):
        return str(error)
    said = str(error)
    if isinstance(error, MemoryError) or any(sign in said for sign in NO_MEMORY):
        return f"the memory of this machine does not suffice: {said or 'allocation failed'}"
    if isinstance(error, OverflowError) or any(sign in said for sign in TOO_LARGE):
        return f"a number is too large: {said}"
    if isinstance(error, RecursionError):
        return f"something is nested too deeply: {said}"
    return None
