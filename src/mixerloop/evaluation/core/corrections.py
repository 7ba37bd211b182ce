"""Corrected answers: a file that names the right options of questions whose gold index is wrong.

    {"about": "where the answers come from",
     "gold": {"arc_easy": {"0123456789abcdef": 1}}}

A question is named by its hash, so that the file holds no text of the data. Every entry must be of
a question of the bundle and must change its answer.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mixerloop.evaluation.core.tasks import Example, LanguageModeling, MultipleChoice, options_of
from mixerloop.files import file_sha256, read_json
from mixerloop.parsing import from_dict

HASH_DIGITS = 16


@dataclass(frozen=True, kw_only=True)
class _File:
    """The content of a file of corrections."""

    about: str
    """The source of the answers."""
    gold: dict[str, dict[str, int]]
    """The index of the right option, by task and by the hash of the question."""


@dataclass(frozen=True, kw_only=True)
class Corrections:
    """The right options of some questions."""

    path: Path
    fingerprint: str
    """The sha256 of the file."""
    gold: Mapping[str, Mapping[str, int]]

    def apply(self, label: str, examples: list[Example]) -> list[Example]:
        """The examples of a task with their right answers; every answer must change an example."""
        left = dict(self.gold.get(label, {}))
        corrected = []
        for example in examples:
            name = question_hash(example)
            index = self.gold.get(label, {}).get(name)
            if index is None or isinstance(example, LanguageModeling) or index == example.gold:
                corrected.append(example)
                continue
            if not 0 <= index < len(options_of(example)):
                num_options = len(options_of(example))
                raise ValueError(
                    f"{self.path}: gold.{label}.{name} = {index}, and there are {num_options}"
                )
            left.pop(name, None)
            corrected.append(replace(example, gold=index))
        for name in left:
            raise ValueError(
                f"{self.path}: gold.{label}.{name} corrects nothing: the bundle has no such "
                "question in this task, or has this answer already"
            )
        return corrected


def read_corrections(path: Path) -> Corrections:
    """Read a file of corrections strictly."""
    data = read_json(path)
    if not isinstance(data, dict):
        raise ValueError(f"{path}: not a table of corrections")
    try:
        content = from_dict(_File, data)
    except ValueError as error:
        raise ValueError(f"{path}: {str(error).removeprefix('config: ')}") from None
    if not any(content.gold.values()):
        raise ValueError(f"{path}: gold holds no answer")
    return Corrections(path=path, fingerprint=file_sha256(path), gold=content.gold)


def question_hash(example: Example) -> str:
    """The name of a question in a file of corrections: a hash of its texts, without its answer."""
    if isinstance(example, LanguageModeling):
        texts = [example.context, example.continuation]
    elif isinstance(example, MultipleChoice):
        texts = [example.query, *example.choices]
    else:
        texts = [*example.context_options, example.continuation]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:HASH_DIGITS]
