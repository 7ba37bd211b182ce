"""Signals that a process sends itself at its n-th file operation: moments that can be repeated.

`install` counts the audit events of Python that create, rename or remove something in a folder. A
signal is sent just before the operation, or right after it. Real processes install the hook at
their start through a `sitecustomize.py`; forked processes call `install` themselves.
"""

import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

VARIABLE = "CHAOS_HOOK"
"""The environment variable in which a real process finds its `Hook`."""
WRITES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.link", "os.symlink"}
OPERATIONS = {
    *("open", "mkdir", "rename", "replace", "remove", "unlink", "rmdir", "truncate", "link"),
    "symlink",
}
"""The functions of Python whose audit events are `open` and `WRITES`."""
OPENED_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT
VERBS = "mixerloop.cli"
"""The first import of a process that hears signals: what comes before is Python's own start."""
SITE = f"""
import importlib.util, os
spec = importlib.util.spec_from_file_location("signals_hook", {str(Path(__file__))!r})
hook = importlib.util.module_from_spec(spec)
import sys
sys.modules["signals_hook"] = hook
spec.loader.exec_module(hook)
if hook.VARIABLE in os.environ:  # processes that this one starts have no signals due
    hook.install(hook.Hook.from_json(os.environ.pop(hook.VARIABLE)))
"""


@dataclass(frozen=True, kw_only=True)
class Hook:
    """What to count, and which signals to send when."""

    folder: str
    """Only operations on files in this folder count."""
    kind: str = "writes"
    """Count file operations that write (writes), that read (reads), or imports (imports)."""
    signals: tuple[tuple[int, int], ...] = ()
    """Pairs of a number of events and the signal to send just before the next event."""
    after: bool = False
    """Send the signals as soon as the operation has returned, instead of just before it."""
    record: str | None = None
    """A file that gets a line for each event: name, path, and the free bytes of the disk."""

    def to_json(self) -> str:
        """For `VARIABLE`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Hook":
        """The hook that `to_json` has written."""
        value = json.loads(text)
        return cls(**value | {"signals": tuple(tuple(pair) for pair in value["signals"])})


def install(hook: Hook) -> None:
    """Count the events of this process from now on; processes that it starts are not counted."""
    due = {event: [] for event, _ in hook.signals}
    for event, number in hook.signals:
        due[event].append(number)
    is_counted = {"writes": _writes, "reads": _reads, "imports": _imports}[hook.kind]
    record = None
    if hook.record is not None:
        record = os.open(hook.record, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    process, count = os.getpid(), 0

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if not is_counted(event, arguments, hook.folder) or os.getpid() != process:
            return
        at, count = count, count + 1
        if record is not None:
            disk = os.statvfs(hook.folder)
            line = [event, str(arguments[0]), disk.f_bavail * disk.f_frsize]
            os.write(record, (json.dumps(line) + "\n").encode())
        for number in due.get(at, ()):
            if hook.after and threading.current_thread() is threading.main_thread():
                sys.setprofile(_sender(number))
            else:
                os.kill(process, number)

    sys.addaudithook(heard)


def _sender(number: int) -> Callable[[FrameType, str, Any], None]:
    """A profile function that sends a signal when the operation that runs now has returned."""

    def returned(_frame: FrameType, event: str, function: Any) -> None:
        if event == "c_return" and getattr(function, "__name__", "") in OPERATIONS:
            sys.setprofile(None)
            os.kill(os.getpid(), number)

    return returned


def _writes(event: str, arguments: tuple[Any, ...], folder: str) -> bool:
    if event == "open":
        flags = arguments[2]
        return bool(flags & OPENED_TO_WRITE) and _is_in(arguments[0], folder)
    return event in WRITES and _is_in(arguments[0], folder)


def _reads(event: str, arguments: tuple[Any, ...], folder: str) -> bool:
    if event != "open" or arguments[2] & OPENED_TO_WRITE:
        return False
    return _is_in(arguments[0], folder)


def _imports(event: str, arguments: tuple[Any, ...], _folder: str) -> bool:
    return event == "import" and (VERBS in sys.modules or arguments[0] == VERBS)


def _is_in(path: Any, folder: str) -> bool:
    if not isinstance(path, str | bytes | os.PathLike):
        return False
    name = os.fsdecode(path)
    return not os.path.isabs(name) or name.startswith(folder)  # noqa: PTH117
