"""`import_run` and `export_run`: convert folders of `transformers` to runs, and back."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from mixerloop import runs
from mixerloop.config import check_fits
from mixerloop.data.tokenizer import Tokenizer
from mixerloop.files import check_is_new, is_there
from mixerloop.interop.folders import (
    CONFIG,
    export,
    exported_config,
    is_exported,
    read_exported,
)
from mixerloop.interop.loading import load_any
from mixerloop.model.checkpoint import save_run
from mixerloop.notation import notation


@dataclass(frozen=True, kw_only=True)
class ImportedRun:
    """A run that was made from a folder of `transformers`."""

    run: Path
    parameters: int
    schedule: str


@dataclass(frozen=True, kw_only=True)
class ExportedFolder:
    """A folder of `transformers` that was made from a run."""

    folder: Path
    checkpoint: Path
    """The folder of the weights that were exported."""
    model_type: str
    """The name of the architecture in `transformers`."""


def import_run(
    folder: Path | str,
    out: Path | str,
    *,
    schedule: str | None = None,
    tokenizer: Path | str | None = None,
    ignore_keys: Collection[str] = (),
) -> ImportedRun:
    """Make a run from a released checkpoint, or from a folder that `export_run` wrote.

    `schedule` replaces the loop that the folder names, and `tokenizer` replaces the folder's
    tokenizer. `ignore_keys` are keys of config.json that have no effect on the model.
    """
    folder, out = Path(folder), Path(out)
    check_is_new(out)
    if not is_exported(folder):
        raise ValueError(f"{folder}: no {CONFIG}, so not a folder of transformers")
    model, config = read_exported(folder, schedule=schedule, ignore=ignore_keys)
    own = folder / runs.TOKENIZER
    has_own = is_there(own)
    pieces = Path(tokenizer) if tokenizer is not None else own if has_own else None
    if pieces is not None:
        check_fits(pieces, Tokenizer(pieces).vocab_size, config.model.vocab_size)
    imported = exported_config(folder)
    if tokenizer is not None:  # the config's ids of special tokens are from the folder's tokenizer
        imported |= dict.fromkeys(("bos_token_id", "eos_token_id"))
    facts = {"seed": None, "imported": str(folder), "forms": model.forms()}
    save_run(out, model, config, tokenizer=pieces, imported=imported, facts=facts)
    return ImportedRun(
        run=out,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        schedule=notation(config.model.occurrences()),
    )


def export_run(run: Path | str, out: Path | str) -> ExportedFolder:
    """Write a folder for `transformers`, with the names of the released checkpoints."""
    out = Path(out)
    check_is_new(out)
    loaded = load_any(Path(run), form="torch")
    tokenizer = loaded.folder / runs.TOKENIZER
    model_type = export(
        loaded.model,
        out,
        tokenizer=tokenizer if is_there(tokenizer) else None,
        like=loaded.imported,
    )
    return ExportedFolder(folder=out, checkpoint=loaded.folder, model_type=model_type)
