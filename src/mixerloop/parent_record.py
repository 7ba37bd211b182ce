"""What a run knows of its parent: the small file in each checkpoint of a run that has a parent."""

from dataclasses import asdict, dataclass
from pathlib import Path

from mixerloop import runs
from mixerloop.files import is_there, json_text, read_json, write_file
from mixerloop.parsing import from_dict

PARENT = "parent.json"


@dataclass(frozen=True, kw_only=True)
class ParentRecord:
    """The model whose weights a run started from; also in the run's provenance."""

    folder: str
    """The folder as the user named it; it may be gone since."""
    sha256: str
    """The fingerprint of the parent's weights."""
    schedule: str
    """The parent's own schedule, in notation."""
    step: int | None
    """The updates that the parent's weights had; None for an exported folder."""
    run_id: str | None
    """The id in the provenance of the parent's run; None if it has none."""
    fresh: tuple[str, ...]
    """The tensors that the parent lacks; they were drawn as in a fresh model."""

    def __str__(self) -> str:
        step = "" if self.step is None else f" at step {self.step:,}"
        fresh = f"; fresh: {', '.join(self.fresh)}" if self.fresh else ""
        return f"the weights of {self.folder}{step}, schedule {self.schedule}{fresh}"


def write_parent(folder: Path, parent: ParentRecord) -> None:
    """Write `parent.json` into the folder of a checkpoint."""
    write_file(folder / PARENT, json_text(asdict(parent)))


def read_parent(folder: Path) -> ParentRecord | None:
    """Read the parent of a checkpoint strictly; None for a run that began with fresh weights."""
    path = folder / PARENT
    if not is_there(path):
        return None
    data = read_json(path)
    if not isinstance(data, dict):
        raise ValueError(f"{path}: not the record of a parent")
    try:
        return from_dict(ParentRecord, data)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def initial_checkpoint(checkpoint: Path) -> Path:
    """The checkpoint of step 0 in the run of a checkpoint: the weights that the run began with."""
    run = runs.run_of(checkpoint)
    if run is None or not is_there(runs.checkpoint_folder(run, 0) / runs.CONTENTS):
        raise ValueError(
            f"{checkpoint}: its run began with the weights of a parent, and the checkpoint of "
            "step 0, which holds them, is not there"
        )
    return runs.checkpoint_folder(run, 0)
