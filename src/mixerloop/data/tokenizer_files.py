"""Open the tokenizer of a file or of a folder, whatever its kind."""

from collections.abc import Collection
from pathlib import Path

from mixerloop import runs
from mixerloop.data.json_tokenizer import JsonTokenizer
from mixerloop.data.sentencepiece_tokenizer import SentencePieceTokenizer
from mixerloop.data.tokenizer import Tokenizer
from mixerloop.files import CONTENTS, is_there, read_file, sealed_files
from mixerloop.parsing import checked


@checked
def open_tokenizer(path: Path | str) -> Tokenizer:
    """The tokenizer of a file, prepared data, a run, a checkpoint or a folder of `transformers`."""
    path = Path(path)
    if not path.is_dir():
        return _opened(path)
    folder = runs.find_checkpoint(path) if runs.checkpoints(path) else path
    tokenizer = tokenizer_in(folder)
    if tokenizer is None:
        raise ValueError(f"{path}: has no tokenizer, neither {' nor '.join(runs.TOKENIZERS)}")
    _check_seal(folder, tokenizer.files)
    return tokenizer


def tokenizer_in(folder: Path) -> Tokenizer | None:
    """The tokenizer of prepared data, a checkpoint or a folder of `transformers`, if it has one."""
    path = runs.tokenizer_file(folder)
    return None if path is None else _opened(path)


def _opened(path: Path) -> Tokenizer:
    return JsonTokenizer(path) if _is_json(path) else SentencePieceTokenizer(path)


def _is_json(path: Path) -> bool:
    """Whether a file is a tokenizer.json, by its suffix or else by its content."""
    if path.suffix in (".json", ".model"):
        return path.suffix == ".json"
    return read_file(path).lstrip().startswith(b"{")


def _check_seal(folder: Path, names: Collection[str]) -> None:
    """Raise if a sealed folder lists other content of the tokenizer's files."""
    sealed = sealed_files(folder) if is_there(folder / CONTENTS) else {}
    for name in sealed.keys() & names:
        sealed[name].check()
