"""`open_parent`: the weights that a new run starts from."""

from functools import partial
from pathlib import Path

from mixerloop import runs
from mixerloop.data.vocabulary import vocabulary_in
from mixerloop.files import is_there
from mixerloop.interop.folders import is_exported
from mixerloop.interop.imported import imported_files
from mixerloop.interop.loading import fingerprint_of, load_any, model_of
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.parsing import checked
from mixerloop.training.parent import Parent
from mixerloop.training.position import POSITION, read_position


@checked
def open_parent(run: Path | str) -> Parent:
    """Open a run, one of its checkpoints, or an exported folder, to start a new run from it.

    The weights are those that the folder has now. They are read when the new run is made.
    """
    path = Path(run)
    is_run = not is_exported(path)
    folder = runs.find_checkpoint(path) if is_run else path
    sha256 = fingerprint_of(folder)
    return Parent(
        folder=path,
        sha256=sha256,
        model=model_of(folder),
        step=_step(folder) if is_run else None,
        run_id=_run_id(folder) if is_run else None,
        vocabulary=vocabulary_in(folder),
        imported=imported_files(folder),
        load=partial(_load, folder, sha256),
    )


def _load(folder: Path, sha256: str) -> LoopedLM:
    loaded = load_any(folder, form="torch")
    if loaded.fingerprint != sha256:
        raise ValueError(f"{folder}: was changed after it was opened")
    return loaded.model


def _step(checkpoint: Path) -> int:
    """The step of a checkpoint; 0 for a run that was not trained."""
    return read_position(checkpoint).step if is_there(checkpoint / POSITION) else 0


def _run_id(checkpoint: Path) -> str | None:
    run = runs.run_of(checkpoint)
    if run is None or not is_there(run / runs.PROVENANCE):
        return None
    return runs.read_provenance(run).get("id")
