"""Signals, errors and exit codes of our processes.

The command line is such a process, and so is the process of a study's cell.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from mixerloop import machine
from mixerloop.notation import shortened

TRACEBACK = "MIXERLOOP_TRACEBACK"
"""Set this environment variable to see the traceback of an error."""
AGAIN_SECONDS = 0.02


def run_program(work: Callable[[], None]) -> None:
    """Run the work of this process; bad input becomes one line on stderr and exit code 2.

    SIGTERM raises SystemExit, so that half-written files are removed. Ctrl-C exits with 130, and a
    failed numerical check with 1.
    """
    machine.end_with_parent()
    signal.signal(signal.SIGTERM, _stop)
    sys.unraisablehook = deliver_again
    try:
        work()
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader has exited, as in `mixerloop describe 15m | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except (KeyboardInterrupt, SystemExit) as stop:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # the process is ending already
        if isinstance(stop, SystemExit):
            raise
        print(file=sys.stderr)
        sys.exit(130)
    except (ValueError, OSError, FloatingPointError) as error:
        if os.environ.get(TRACEBACK):
            raise
        rank = f" (rank {os.environ['RANK']})" if "RANK" in os.environ else ""
        print(f"mixerloop{rank}: {_one_line(error)}", file=sys.stderr)
        sys.exit(1 if isinstance(error, FloatingPointError) else 2)


def deliver_again(lost: "sys.UnraisableHookArgs") -> None:
    """Send a signal again if its exception was raised where Python drops exceptions.

    Python drops exceptions in finalizers and callbacks. Importing torch runs many of these, so
    Ctrl-C would otherwise be ignored.
    """
    again = {KeyboardInterrupt: signal.SIGINT, SystemExit: signal.SIGTERM}.get(lost.exc_type)
    if again is None:
        sys.__unraisablehook__(lost)
    else:
        threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), again)).start()


def _stop(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return " ".join(f"{error.filename}: {error.strerror}".split())
    return shortened(" ".join(str(error).split()), most=1000)
