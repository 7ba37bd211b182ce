"""The history of a run: what each step computed, and how long it took.

Every checkpoint holds `metrics.jsonl` and `timing.jsonl` as they were at its step, sealed with its
other files. A history that was cut off, emptied, deleted or changed is therefore noticed by every
reader, and a resumed run restores it. Checkpoints of version 0.1.0 hold no copy; then the steps of
the history must be complete.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mixerloop import runs
from mixerloop.files import CONTENTS, sealed_files, write_file
from mixerloop.messages import shell_word

FILES = (runs.METRICS, runs.TIMING)
RESTORED = "was damaged; restored from"
Record = dict[str, Any]
"""The numbers of a step, by name; `step` is one of them."""


def read_history(run: Path, name: str) -> list[Record]:
    """The records of all steps in a file of the history; raises if one is changed or missing."""
    path = run / name
    checkpoints = runs.checkpoints(run)
    newest = max(checkpoints, default=0)
    sealed = _sealed(checkpoints[newest], name) if checkpoints else None
    content = path.read_bytes() if path.is_file() else b""
    if sealed is not None and not content.startswith(sealed):
        raise ValueError(
            f"{path}: is not the history that the newest checkpoint was written with; "
            f"restore it: mixerloop train --resume {shell_word(run)}"
        )
    records = [_record(path, line) for line in _whole_lines(content)]
    _check_steps(path, records, least=newest)
    return records


def restore_history(run: Path, checkpoint: Path, step: int) -> list[str]:
    """Make the history end at the step of a checkpoint, from which the run is resumed.

    Later records are removed, since the resumed run writes them again. A file that is not as the
    checkpoint has it is restored from the checkpoint's copy; the names of such files are returned.
    """
    restored = []
    for name in FILES:
        path, sealed = run / name, _sealed(checkpoint, name)
        content = path.read_bytes() if path.is_file() else b""
        if sealed is None:
            lines = _whole_lines(content)
            kept = [line for line in lines if _record(path, line)["step"] <= step]
            _check_steps(path, [_record(path, line) for line in kept], least=step)
            sealed = "".join(kept).encode()
        elif not content.startswith(sealed):
            restored.append(name)
        if content != sealed:
            write_file(path, sealed)
    return restored


def copy_history(run: Path, checkpoint: Path) -> None:
    """Copy the history into the folder of a checkpoint that is being made."""
    for name in FILES:
        if (run / name).is_file():
            write_file(checkpoint / name, (run / name).read_bytes())


def last_record(records: Sequence[Record], *, having: str = "step") -> Record:
    """The last record that has the key `having`, or an empty record."""
    return next((record for record in reversed(records) if having in record), {})


def _sealed(checkpoint: Path, name: str) -> bytes | None:
    """A checkpoint's copy of a file of the history; None if the checkpoint has no copy."""
    if not (checkpoint / CONTENTS).is_file():
        raise ValueError(f"{checkpoint}: damaged, it has no {CONTENTS}")
    file = sealed_files(checkpoint).get(name)
    if file is None:
        return None
    file.check()
    return file.path.read_bytes()


def _whole_lines(content: bytes) -> list[str]:
    """The complete lines of a file; a last line that was cut off by a kill is left out."""
    lines = content.decode(encoding="utf-8", errors="replace").splitlines(keepends=True)
    return [line for line in lines if line.endswith("\n")]


def _record(path: Path, line: str) -> Record:
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if (
        not isinstance(record, dict)
        or not all(type(value) in (int, float) for value in record.values())
        or type(record.get("step")) is not int
    ):
        raise ValueError(f"{path}: damaged, this is no record of a step: {line.strip()[:60]!r}")
    return record


def _check_steps(path: Path, records: Sequence[Record], *, least: int) -> None:
    """Raise if a step is missing: the steps are 1, 2, 3 and so on, at least to the checkpoint's."""
    for expected, record in enumerate(records, start=1):
        if record["step"] != expected:
            raise ValueError(f"{path}: damaged, step {record['step']:,} follows {expected - 1:,}")
    if len(records) < least:
        raise ValueError(
            f"{path}: the steps {len(records) + 1:,} to {least:,} are missing; put the file back"
        )
