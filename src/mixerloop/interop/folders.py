"""Convert folders of `transformers` to our models, and our models to such folders."""

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mixerloop import runs
from mixerloop.config import FormChoice, ModelConfig, RunConfig
from mixerloop.files import (
    CONTENTS,
    check_space,
    is_there,
    json_text,
    new_folder,
    read_json,
    seal_folder,
    sealed_files,
    write_file,
)
from mixerloop.interop.layout import (
    HEAD,
    LOOPED,
    RESIDUAL_WEIGHT,
    dialect_of,
    from_released,
    to_released,
)
from mixerloop.interop.released_config import RELEASES, model_config, released_config
from mixerloop.interop.tokenizer_json import write_tokenizer
from mixerloop.model.initialization import meta_model
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.parsing import one_line

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
DAMAGE = (TypeError, IndexError, KeyError, AttributeError, RuntimeError, OverflowError)
"""Errors that a file with unexpected content can cause."""
PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt")


def is_exported(path: Path) -> bool:
    """Whether a folder has the format of `transformers`, and is not a run or a checkpoint.

    A sealed folder of which `config.json` was lost counts, so that the error names the lost file.
    """
    if not path.is_dir() or is_there(path / runs.CONFIG):
        return False
    return is_there(path / CONFIG) or (is_there(path / CONTENTS) and is_there(path / WEIGHTS))


def check_export(folder: Path) -> None:
    """Raise if a file that `export` has written is changed or missing.

    A released folder has no seal. Files that were added to an exported folder are not checked.
    """
    if not is_there(folder / CONTENTS):
        return
    for file in sealed_files(folder).values():
        if not file.path.is_file():
            raise ValueError(f"{file.path}: missing from the exported folder; export the run again")
        file.check()


def export(
    model: LoopedLM,
    folder: Path,
    *,
    tokenizer: Path | None = None,
    like: Mapping[str, Any] | None = None,
) -> str:
    """Write a folder that loads after `import mixerloop.interop.hf`; returns its model type.

    `like` is the config of the folder that the model came from, if it came from one.
    """
    facts = released_config(model.config, like=like)
    kind = facts["model_type"]
    tensors = to_released(
        dict(model.named_parameters()),
        num_layers=model.config.num_layers,
        dialect=RELEASES[kind].dialect if kind in RELEASES else LOOPED,
    )
    for key, number in _special_tokens(tokenizer).items():
        if facts.get(key) is None and (like is None or key in like or number is not None):
            facts[key] = number
    pieces = None if tokenizer is None else tokenizer.read_bytes()
    check_space(folder, sum(tensor.nbytes for tensor in tensors.values()))
    with new_folder(folder) as making:
        try:
            save_file(tensors, making / WEIGHTS, metadata={"format": "pt"})
        except SafetensorError as error:  # its own kind even for a full disk
            raise ValueError(f"{folder / WEIGHTS}: cannot be written: {one_line(error)}") from None
        write_file(making / CONFIG, json_text(facts))
        if pieces is not None:
            write_file(making / runs.TOKENIZER, pieces)
            write_tokenizer(making)
        seal_folder(making)
    return kind


def read_exported(
    folder: Path,
    *,
    form: FormChoice = "auto",
    schedule: str | None = None,
    ignore: Collection[str] = (),
) -> tuple[LoopedLM, RunConfig]:
    """The model of a folder; raises an error that names every key or tensor that does not fit."""
    config = exported_model(folder, schedule=schedule, ignore=ignore)
    try:
        tensors = _tensors(folder)
        model = meta_model(config, form=form)
        _check_fit(tensors, model)
        ours = from_released(tensors, num_layers=config.num_layers)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from None
    except DAMAGE as error:
        raise ValueError(f"{folder}: damaged, or of another model: {one_line(error)}") from None
    model.load_state_dict(ours, assign=True)
    return model, RunConfig(model=config)


def exported_model(
    folder: Path, *, schedule: str | None = None, ignore: Collection[str] = ()
) -> ModelConfig:
    """Sizes and schedule of a folder's model, without its weights."""
    check_export(folder)
    place = folder
    try:
        has_residual, config = _has_residual(folder), exported_config(folder)
        place = folder / CONFIG
        return model_config(config, has_residual=has_residual, schedule=schedule, ignore=ignore)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None
    except DAMAGE as error:
        raise ValueError(f"{place}: damaged, or of another model: {one_line(error)}") from None


def exported_config(folder: Path) -> dict[str, Any]:
    """The config.json of a folder of `transformers`."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{CONFIG}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{CONFIG}: not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{CONFIG}: not an object")
    return config


def weight_files(folder: Path) -> list[Path]:
    """The file of the weights, or all files that an index names."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        names = sorted(set(read_json(folder / INDEX)["weight_map"].values()))
        files = [folder / name for name in names]
        for file in files:
            if file.parent != folder:
                raise ValueError(f"{INDEX}: {file.name} is not in this folder")
        return files
    if any(path for pattern in PICKLES for path in folder.glob(pattern)):
        raise ValueError("its weights are a pickle, which can run code; convert to safetensors")
    raise ValueError(f"there is no {WEIGHTS}")


def _tensors(folder: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for file in weight_files(folder):
        with _opened(file) as opened:
            tensors |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    return tensors


def _has_residual(folder: Path) -> bool:
    """Whether the weights have a learned residual."""
    for file in weight_files(folder):
        with _opened(file) as opened:
            if RESIDUAL_WEIGHT in opened.keys():  # noqa: SIM118
                return True
    return False


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt") as opened:
            yield opened
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file.name}: not a readable safetensors file: {error}") from None


def _check_fit(tensors: dict[str, Tensor], model: LoopedLM) -> None:
    """Compare the names and shapes of the tensors with those of a model of the config."""
    wanted = to_released(
        dict(model.named_parameters()),
        num_layers=model.config.num_layers,
        dialect=dialect_of(tensors),
    )
    problems = [
        f"{name} has the shape {list(tensors[name].shape)}, not {list(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in tensors and tensors[name].shape != tensor.shape
    ]
    problems += [f"missing {name}" for name in wanted.keys() - tensors.keys()]
    problems += [f"unexpected {name}" for name in tensors.keys() - wanted.keys() - {HEAD}]
    if problems:
        raise ValueError(f"its weights do not fit its config: {'; '.join(sorted(problems))}")


def _special_tokens(tokenizer: Path | None) -> dict[str, Any]:
    """The ids of the start token and of the tokens that end a text.

    Our documents begin with a start token and have no end token, so either token ends a text.
    """
    if tokenizer is None:
        return {"bos_token_id": None, "eos_token_id": None}
    from mixerloop.data.tokenizer import Tokenizer

    opened = Tokenizer(tokenizer)
    ends = [number for number in (opened.eos_id, opened.bos_id) if number >= 0]
    bos = opened.bos_id if opened.bos_id >= 0 else None
    return {"bos_token_id": bos, "eos_token_id": ends or None}
