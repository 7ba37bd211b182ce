"""What a process of ours does first: signals, descriptors and streams, before anything heavy loads.

This module imports only small modules of Python. `__main__` has let Ctrl-C end the process before.
What happens before that is Python's own: a Ctrl-C in the first hundredths of a second, while Python
starts and reads its folder of packages, may still print a traceback that names no file of ours.
"""

import codecs
import io
import os
import signal
import sys

TYPE_CHECKING = False  # `typing` takes longer to load than all else here
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import TextIO

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STDOUT, STDERR = "stdout", "stderr"
ERRORS = "mixerloop"
"""The name of our handler of characters that a stream cannot encode."""
LOOKALIKES = str.maketrans("─━│╭╮╰╯┌┐└┘├┤•…", "-=|++++++++++*.")
"""ASCII characters for the frames and marks of `--help`, tables and bars."""
TERMINAL_SIZES = range(20, 1001)
"""The columns and lines that a terminal can have; anything else in the environment is dropped."""


def begin() -> None:
    """Make signals end this process without a traceback, and make its three streams usable."""
    for number in heard():
        signal.signal(number, leave)
    codecs.register_error(ERRORS, _lookalike)
    _occupy_descriptors()
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    if _is_plain(sys.stdout, 1):
        sys.stdout = Output(1, STDOUT, like=sys.stdout)
    if _is_plain(sys.stderr, 2):
        sys.stderr = LastingOutput(2, STDERR, like=sys.stderr)
    for name in ("COLUMNS", "LINES"):
        size = os.environ.get(name, "80")
        if not (size.isascii() and size.isdigit() and int(size[:9]) in TERMINAL_SIZES):
            del os.environ[name]


def heard() -> list[signal.Signals]:
    """The signals that end this process: all but those that `nohup` or a shell had it ignore."""
    return [number for number in STOPPING if signal.getsignal(number) is not signal.SIG_IGN]


def leave(number: int, frame: "FrameType | None") -> None:
    """End the process at once; for a process that has nothing to clean up."""
    os._exit(128 + number)


class Output(io.TextIOWrapper):
    """A stream that can print every character, and whose errors name it."""

    def __init__(self, descriptor: int, name: str, *, like: "TextIO | None") -> None:
        super().__init__(
            io.BufferedWriter(io.FileIO(descriptor, "w", closefd=False)),
            encoding="utf-8" if like is None else like.encoding,
            errors=ERRORS,
            line_buffering=descriptor == 2 or (like is not None and _is_prompt(like)),
        )
        self._descriptor, self._title = descriptor, name
        self.shows: "Callable[[str], str]" = str
        """What is written in place of a text; a program sets it once its options are parsed."""

    def write(self, text: str, /) -> int:
        """Write text; an OSError has the name of the stream as its filename."""
        return self.write_exactly(self.shows(text))

    def write_exactly(self, text: str) -> int:
        """Write text with its control characters."""
        try:
            return super().write(text)
        except OSError as error:
            self._failed(error)
            return len(text)

    def flush(self) -> None:
        """Flush; an OSError has the name of the stream as its filename."""
        try:
            super().flush()
        except OSError as error:
            self._failed(error)

    def drop(self) -> None:
        """Send all that is still to be written nowhere, so that the end of the process succeeds."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._descriptor)
        os.close(nowhere)

    def _failed(self, error: OSError) -> None:
        error.filename = self._title
        raise error


def _is_prompt(stream: "TextIO") -> bool:
    """Whether a stream shows each line at once: a terminal, or any stream under `python -u`."""
    return stream.isatty() or (isinstance(stream, io.TextIOWrapper) and stream.write_through)


class LastingOutput(Output):
    """A stderr that never fails: progress and warnings must not stop the work."""

    def _failed(self, error: OSError) -> None:
        self.drop()


def _is_plain(stream: "TextIO | None", descriptor: int) -> bool:
    """Whether a stream is missing or Python's own, and not one that a program has put there."""
    if stream is None:
        return True
    return type(stream) is io.TextIOWrapper and stream.fileno() == descriptor


def _occupy_descriptors() -> None:
    """Open /dev/null under the descriptors 0 to 2 that are closed.

    Otherwise the next file that is opened, such as a checkpoint, would be stdout or stderr.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)  # the lowest that is free, which is `number`
            os.set_inheritable(nowhere, True)


def _lookalike(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that a stream cannot encode by similar characters or by escapes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(LOOKALIKES)
    return text.encode("ascii", "backslashreplace").decode("ascii"), error.end
