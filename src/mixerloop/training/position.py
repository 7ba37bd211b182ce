"""The position of a run: the small file beside the tensors of a checkpoint."""

from dataclasses import asdict, dataclass
from pathlib import Path

from mixerloop.files import json_text, read_json, write_file
from mixerloop.parsing import from_dict

POSITION = "position.json"


@dataclass(frozen=True, kw_only=True)
class Position:
    """Everything but the tensors that a run needs to be resumed exactly."""

    step: int
    """Updates made; step and seed determine the next batch and all random numbers."""
    seed: int
    seconds: float
    """Time spent training, over all sessions."""
    total_steps: int | None
    """Updates the budget pays for; None for a budget in seconds."""
    finished: bool
    data_checked: bool = True
    """Whether every file of the data was hashed before this checkpoint was written; false only
    where a signal stopped the session first. Version 0.1.0 has no such key."""
    depth_starts: tuple[int, ...] = ()
    """The steps from which the schedules of `train.schedule_at` are trained, as far as they began;
    only where the budget is in seconds."""


def write_position(folder: Path, position: Position) -> None:
    """Write `position.json` into the folder of a checkpoint."""
    written = {key: value for key, value in asdict(position).items() if value != ()}
    write_file(folder / POSITION, json_text(written))


def read_position(folder: Path) -> Position:
    """Read the position of a checkpoint strictly."""
    path = folder / POSITION
    if not path.is_file():
        raise ValueError(f"{folder}: no {POSITION}; this checkpoint was not written by training")
    data = read_json(path)
    if not isinstance(data, dict):
        raise ValueError(f"{path}: not a position")
    try:
        return from_dict(Position, data)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
