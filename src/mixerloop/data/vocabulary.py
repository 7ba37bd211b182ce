"""The vocabulary of data or of a model: what its token ids mean.

The ids of a text are pieces of a tokenizer. The ids of a synthetic task are symbols of the task. A
checkpoint has files that say which: those of the tokenizer, or `task.json`. A model with neither,
such as a model with fresh weights, has no known vocabulary.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from mixerloop.config import check_fits
from mixerloop.data.tokenizer_files import tokenizer_in
from mixerloop.files import is_there, json_text, read_json
from mixerloop.parsing import from_dict

TASK = "task.json"


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The identity of a tokenizer, or the name of a synthetic task, with the number of ids."""

    num_ids: int
    tokenizer_sha256: str | None = None
    task: str | None = None

    def __str__(self) -> str:
        if self.task is not None:
            return f"the synthetic task {self.task} with {self.num_ids:,} token ids"
        return f"the tokenizer {str(self.tokenizer_sha256)[:10]}"


def task_files(vocabulary: Vocabulary) -> Mapping[str, bytes]:
    """The file, by its name, in which a checkpoint has the vocabulary of a synthetic task."""
    return {TASK: json_text(asdict(vocabulary)).encode()}


def vocabulary_in(folder: Path) -> Vocabulary | None:
    """The vocabulary of a checkpoint or of a folder of `transformers`, if its files say it."""
    tokenizer = tokenizer_in(folder)
    if tokenizer is not None:
        return Vocabulary(num_ids=tokenizer.vocab_size, tokenizer_sha256=tokenizer.fingerprint)
    path = folder / TASK
    if not is_there(path):
        return None
    try:
        return from_dict(Vocabulary, read_json(path))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def check_vocabulary(
    data: Path, of_data: Vocabulary, model: Path, of_model: Vocabulary | None, *, vocab_size: int
) -> None:
    """Reject data whose token ids mean other things to a model, or are too many for it.

    `data` and `model` are the folders. A model without a known vocabulary may have any data that
    fits its embedding, which has `vocab_size` ids.
    """
    if of_model not in (None, of_data):
        cure = "name data of that task" if of_model.task else "prepare the data with that tokenizer"
        raise ValueError(f"{data}: is of {of_data}, and {model} is of {of_model}; {cure}")
    check_fits(data, of_data.num_ids, vocab_size)
