"""What a run keeps of the folder that its weights came from, so that an export is like it.

An imported run has these files beside its weights. A run that was trained further from such a run
has them in its first checkpoint, which is never removed.
"""

from pathlib import Path
from typing import Any

from safetensors.torch import save

from mixerloop import runs
from mixerloop.files import is_there, json_text, read_file, read_json, sealed_files
from mixerloop.interop.folders import exported_config, is_exported, naming_folder, weight_files
from mixerloop.interop.pretrained import family_of, opened_files
from mixerloop.parent_record import read_parent


def imported_file(checkpoint: Path, name: str) -> Path | None:
    """A file of an import: beside the weights, or in the first checkpoint of the same run.

    None if the weights came from no import, or if the checkpoint was taken out of its run.
    """
    if is_there(checkpoint / name):
        return checkpoint / name
    run = runs.run_of(checkpoint)
    if run is None or read_parent(checkpoint) is None:
        return None
    first = runs.checkpoint_folder(run, 0)
    sealed = sealed_files(first).get(name) if is_there(first / runs.CONTENTS) else None
    if sealed is None:
        return None
    sealed.check()
    return sealed.path


def imported_config(checkpoint: Path) -> dict[str, Any] | None:
    """The config.json that the weights of a run came with; None if they came from no import."""
    file = imported_file(checkpoint, runs.IMPORTED)
    return None if file is None else read_json(file)


def imported_files(folder: Path) -> dict[str, bytes]:
    """The files of an import by name, from a checkpoint or a folder of `transformers`."""
    if is_exported(folder):
        return _files_of_export(folder)
    found = {name: imported_file(folder, name) for name in (runs.IMPORTED, runs.IMPORTED_TENSORS)}
    return {name: read_file(file) for name, file in found.items() if file is not None}


def _files_of_export(folder: Path) -> dict[str, bytes]:
    config = exported_config(folder)
    files = {runs.IMPORTED: json_text(config).encode()}
    if (family := family_of(config)) is not None and family.unused:
        with naming_folder(folder), opened_files(weight_files(folder)) as tensors:
            kept = {name: tensors.load(name) for name in sorted(tensors.names() & {*family.unused})}
            if kept:
                files[runs.IMPORTED_TENSORS] = save(kept, metadata={"format": "pt"})
    return files
