"""`import_run` and `export_run`: convert folders of `transformers` to runs, and back."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from mixerloop import runs
from mixerloop.config import RunConfig, check_fits
from mixerloop.data.tokenizer_files import open_tokenizer, tokenizer_in
from mixerloop.files import check_is_new, under_final_name
from mixerloop.interop import gguf
from mixerloop.interop.chosen_layers import only_layers
from mixerloop.interop.families.family import Family
from mixerloop.interop.folders import (
    CONFIG,
    WEIGHTS,
    export,
    exported_config,
    exported_model,
    is_exported,
    naming_folder,
    read_exported,
    weight_files,
    write_pretrained,
)
from mixerloop.interop.imported import imported_file
from mixerloop.interop.loading import Loaded, load_any
from mixerloop.interop.pretrained import (
    Correspondence,
    counting_not_finite,
    family_of,
    opened_files,
    write_tensors,
)
from mixerloop.interop.released_config import TYPES
from mixerloop.model.checkpoint import NO_TOKENIZER, make_run, save_tensors
from mixerloop.model.initialization import meta_model
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.notation import notation
from mixerloop.ops.caller_modes import torch_defaults
from mixerloop.parent_record import read_parent
from mixerloop.parsing import checked


@dataclass(frozen=True, kw_only=True)
class ImportedRun:
    """A run that was made from a folder of `transformers`."""

    run: Path
    parameters: int
    schedule: str
    unused: tuple[str, ...] = ()
    """Tensors of the folder that our model does not need; they are kept for an export."""
    not_finite: Mapping[str, int] = field(default_factory=dict)
    """How many values are NaN or infinite, in each of our tensors that has any."""


@dataclass(frozen=True, kw_only=True)
class ExportedFolder:
    """A folder of `transformers` that was made from a run."""

    folder: Path
    checkpoint: Path
    """The folder of the weights that were exported."""
    model_type: str
    """The name of the architecture in `transformers`."""
    is_ours: bool
    """Whether `mixerloop.interop.hf` has the class of this type."""


@checked
@torch_defaults()
def import_run(
    folder: Path | str,
    out: Path | str,
    *,
    schedule: str | None = None,
    layers: Sequence[int] | None = None,
    tokenizer: Path | str | None = None,
    ignore_keys: Sequence[str] = (),
) -> ImportedRun:
    """Make a run from a pretrained or released folder, a GGUF file, or what `export_run` wrote.

    `schedule` replaces the loop that the folder names, and `tokenizer` replaces the folder's
    tokenizer. With `layers` the model has these layers of the folder only, counted from 0.
    `ignore_keys` are keys of config.json that have no effect on the model.
    """
    source, out = Path(folder), Path(out)
    check_is_new(out)
    with ExitStack() as temporary:
        if gguf.is_gguf(source):
            place = temporary.enter_context(gguf.unpacked(source))
        elif is_exported(source):
            place = source
        else:
            raise ValueError(f"{source}: no {CONFIG}, so not a folder of transformers")
        if place != source:
            temporary.enter_context(under_final_name(place, source))
        if layers is not None:
            place = temporary.enter_context(only_layers(place, layers))
            temporary.enter_context(under_final_name(place, source))
        return _import(source, place, out, schedule, tokenizer, ignore_keys)


def _import(
    source: Path,
    folder: Path,
    out: Path,
    schedule: str | None,
    tokenizer: Path | str | None,
    ignore: Collection[str],
) -> ImportedRun:
    """Make a run from a folder; `source` is what the user named."""
    config = RunConfig(model=exported_model(folder, schedule=schedule, ignore=ignore))
    opened = tokenizer_in(folder) if tokenizer is None else open_tokenizer(tokenizer)
    if opened is not None:
        check_fits(tokenizer or folder, opened.vocab_size, config.model.vocab_size)
    imported = exported_config(folder)
    if tokenizer is not None:  # the config's ids of special tokens are from the folder's tokenizer
        imported |= dict.fromkeys(("bos_token_id", "eos_token_id"))
    model = meta_model(config.model)
    made = ImportedRun(
        run=out,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        schedule=notation(config.model.occurrences()),
    )
    not_finite: dict[str, int] = {}
    write_weights: Callable[[Path], None]
    if (family := family_of(imported)) is None:
        whole, _ = read_exported(folder, schedule=schedule, ignore=ignore)
        write_weights = partial(_write_released_weights, whole, not_finite)
    else:
        found = Correspondence(family, config.model, imported)
        with naming_folder(source), opened_files(weight_files(folder)) as tensors:
            made = replace(made, unused=tuple(found.check(tensors)))
        write_weights = partial(_write_pretrained_weights, folder, found, made.unused, not_finite)
    make_run(
        out,
        config,
        write_weights=write_weights,
        tokenizer=NO_TOKENIZER if opened is None else opened.files,
        imported=imported,
        facts={"seed": None, "imported": str(source), "forms": model.forms()},
    )
    return replace(made, not_finite=not_finite)


def _write_released_weights(model: LoopedLM, not_finite: dict[str, int], checkpoint: Path) -> None:
    save_tensors(
        checkpoint / WEIGHTS, dict(counting_not_finite(model.state_dict().items(), not_finite))
    )


def _write_pretrained_weights(
    folder: Path,
    found: Correspondence,
    unused: Collection[str],
    not_finite: dict[str, int],
    checkpoint: Path,
) -> None:
    with opened_files(weight_files(folder)) as tensors:
        found.write_ours(checkpoint / WEIGHTS, tensors, not_finite)
        if unused:
            header = {name: (tensors.dtype(name), tensors.shape(name)) for name in unused}
            kept = ((name, tensors.load(name)) for name in unused)
            write_tensors(checkpoint / runs.IMPORTED_TENSORS, kept, header)


@checked
@torch_defaults()
def export_run(run: Path | str, out: Path | str) -> ExportedFolder:
    """Write a folder for `transformers`.

    A model that came from a pretrained folder gets the layout of that folder, other models the
    layout of the released checkpoints.
    """
    out = Path(out)
    check_is_new(out)
    loaded = load_any(Path(run), form="torch")
    if loaded.imported is not None and (family := family_of(loaded.imported)) is not None:
        _export_pretrained(loaded, loaded.imported, family, out)
        model_type = family.model_type
    else:
        tokenizer = tokenizer_in(loaded.folder)
        model_type = export(loaded.model, out, tokenizer=tokenizer, like=loaded.imported)
    is_ours = model_type in TYPES
    return ExportedFolder(
        folder=out, checkpoint=loaded.folder, model_type=model_type, is_ours=is_ours
    )


def _export_pretrained(loaded: Loaded, like: Mapping[str, Any], family: Family, out: Path) -> None:
    """Write a model in the layout of the pretrained folder that its weights came from."""
    config = {**like, **family.write_schedule(loaded.config.model, like)}
    found = Correspondence(family, loaded.config.model, like)
    is_trained_further = loaded.is_run and read_parent(loaded.folder) is not None  # in float32
    if loaded.is_run:
        unused_file = imported_file(loaded.folder, runs.IMPORTED_TENSORS)
        files = [loaded.folder / WEIGHTS, *([] if unused_file is None else [unused_file])]
    else:
        files = weight_files(loaded.folder)
    with opened_files(files) as tensors:
        unused = tensors.names() & set(family.unused)
        ours = (
            {name: tensors.load(name) for name in tensors.names() - unused}
            if loaded.is_run
            else dict(found.all_joined(tensors))
        )
        theirs = {name: part.contiguous() for name, part in found.split(ours).items()}
        for name in unused:
            tensor = tensors.load(name)
            theirs[name] = tensor.float() if is_trained_further else tensor
        write_pretrained(out, theirs, config, tokenizer=tokenizer_in(loaded.folder))
