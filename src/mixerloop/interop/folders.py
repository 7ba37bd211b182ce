"""Convert folders of `transformers` to our models, and our models to such folders."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mixerloop import runs
from mixerloop.config import FormChoice, ModelConfig, RunConfig
from mixerloop.data.tokenizer import Tokenizer
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
from mixerloop.interop.families import FAMILIES
from mixerloop.interop.layout import (
    HEAD,
    LOOPED,
    RESIDUAL_WEIGHT,
    dialect_of,
    from_released,
    to_released,
)
from mixerloop.interop.pretrained import Correspondence, family_of, opened_files
from mixerloop.interop.released_config import RELEASES, TYPES, model_config, released_config
from mixerloop.interop.tokenizer_json import write_tokenizer
from mixerloop.model.checkpoint import assign_weights
from mixerloop.model.initialization import meta_model
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.parsing import one_line, suggest

CONFIG = runs.TRANSFORMERS_CONFIG
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
DAMAGE = (TypeError, IndexError, KeyError, AttributeError, RuntimeError, ArithmeticError)
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
    tokenizer: Tokenizer | None = None,
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
    with _new_export(folder, tensors, facts) as making:
        if tokenizer is not None:
            write_tokenizer(making, tokenizer)
    return kind


def write_pretrained(
    folder: Path,
    tensors: Mapping[str, Tensor],
    config: Mapping[str, Any],
    *,
    tokenizer: Tokenizer | None,
) -> None:
    """Write the folder of a pretrained model, with its tokenizer if there is one."""
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()}
    facts = dict(config)
    for key in ("dtype", "torch_dtype"):
        if key in facts and len(dtypes) == 1:
            facts[key] = next(iter(dtypes))
    with _new_export(folder, tensors, facts) as making:
        if tokenizer is not None:
            write_tokenizer(making, tokenizer)


@contextmanager
def _new_export(
    folder: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> Iterator[Path]:
    """A new folder with weights and config, which is sealed once the caller has added the rest."""
    check_space(folder, sum(tensor.nbytes for tensor in tensors.values()))
    with new_folder(folder) as making:
        try:
            save_file(dict(tensors), making / WEIGHTS, metadata={"format": "pt"})
        except SafetensorError as error:  # its own kind even for a full disk
            raise ValueError(f"{folder / WEIGHTS}: cannot be written: {one_line(error)}") from None
        write_file(making / CONFIG, json_text(facts))
        yield making
        seal_folder(making)


def read_exported(
    folder: Path,
    *,
    form: FormChoice = "auto",
    schedule: str | None = None,
    ignore: Collection[str] = (),
    keep_narrow: bool = False,
) -> tuple[LoopedLM, RunConfig]:
    """The model of a folder; raises an error that names every key or tensor that does not fit.

    `keep_narrow` is as in `mixerloop.model.checkpoint.load_model`.
    """
    config = exported_model(folder, schedule=schedule, ignore=ignore)
    model = meta_model(config, form=form)
    given = exported_config(folder)
    with naming_folder(folder):
        if (family := family_of(given)) is not None:
            found = Correspondence(family, config, given)
            with opened_files(weight_files(folder)) as tensors:
                found.check(tensors)
                assign_weights(model, dict(found.all_joined(tensors)), keep_narrow=keep_narrow)
        else:
            tensors = _tensors(folder)
            _check_fit(tensors, model)
            ours = from_released(tensors, num_layers=config.num_layers)
            model.load_state_dict(ours, assign=True)
    return model, RunConfig(model=config)


@contextmanager
def naming_folder(place: Path) -> Iterator[None]:
    """Errors about what a folder holds begin with its name."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None
    except DAMAGE as error:
        raise ValueError(f"{place}: damaged, or of another model: {one_line(error)}") from None


def exported_model(
    folder: Path, *, schedule: str | None = None, ignore: Collection[str] = ()
) -> ModelConfig:
    """Sizes and schedule of a folder's model, without its weights."""
    check_export(folder)
    given = exported_config(folder)
    with naming_folder(folder):
        has_residual = _has_residual(folder)
    with naming_folder(folder / CONFIG):
        if (family := family_of(given)) is not None:
            return family.model_config(given, schedule=schedule, ignore=ignore)
        if (kind := given.get("model_type")) not in TYPES:
            known = suggest(kind, (*TYPES, *FAMILIES))
            raise ValueError(f"model_type '{kind}' is not known here; {known}")
        return model_config(given, has_residual=has_residual, schedule=schedule, ignore=ignore)


def exported_config(folder: Path) -> dict[str, Any]:
    """The config.json of a folder of `transformers`."""
    config = read_json(folder / CONFIG)
    if not isinstance(config, dict):
        raise ValueError(f"{folder / CONFIG}: not an object")
    return config


def weight_files(folder: Path) -> list[Path]:
    """The file of the weights, or all files that an index names."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        names = sorted(set(read_json(folder / INDEX)["weight_map"].values()))
        files = [folder / name for name in names]
        for file in files:
            if file.parent != folder or not file.is_file():
                raise ValueError(f"{INDEX}: {file.name} is not in this folder")
        if not files:
            raise ValueError(f"{INDEX}: names no file")
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


def _special_tokens(tokenizer: Tokenizer | None) -> dict[str, Any]:
    """The ids of the start token and of the tokens that end a text.

    Our documents begin with a start token and have no end token, so either token ends a text.
    """
    if tokenizer is None:
        return {"bos_token_id": None, "eos_token_id": None}
    ends = [number for number in (tokenizer.eos_id, tokenizer.bos_id) if number >= 0]
    bos = tokenizer.bos_id if tokenizer.bos_id >= 0 else None
    return {"bos_token_id": bos, "eos_token_id": ends or None}
