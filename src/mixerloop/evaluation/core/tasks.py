"""Read the tasks of `core.yaml`, and their examples, one JSON object per line."""

import json
import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

import yaml

from mixerloop.parsing import from_dict, one_line, one_of

Kind = Literal["multiple_choice", "schema", "language_modeling"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task: the path of its examples, and the format of its prompts."""

    label: str
    dataset: str
    kind: Kind
    num_shots: int
    delimiter: str = " "
    """The text between a question and its answer."""


@dataclass(frozen=True, kw_only=True)
class MultipleChoice:
    """One question with several answers; the model chooses the most likely answer."""

    query: str
    choices: tuple[str, ...]
    gold: int


@dataclass(frozen=True, kw_only=True)
class Schema:
    """Several beginnings of one end; the model chooses the beginning with the likeliest end."""

    context_options: tuple[str, ...]
    continuation: str
    gold: int


@dataclass(frozen=True, kw_only=True)
class LanguageModeling:
    """A beginning whose continuation the model must predict token for token."""

    context: str
    continuation: str


Example = MultipleChoice | Schema | LanguageModeling
EXAMPLES: dict[Kind, type[Example]] = {
    "multiple_choice": MultipleChoice,
    "schema": Schema,
    "language_modeling": LanguageModeling,
}
MUST_SAY_SOMETHING = ("query", "context", "continuation")
ALSO_KNOWN = {"category"}  # a key of jeopardy, which is not split by category here


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """A task with the keys of `core.yaml`."""

    label: str
    dataset_uri: str
    num_fewshot: tuple[int, ...]
    icl_task_type: str
    continuation_delimiter: str = " "
    has_categories: bool = False


def read_tasks(content: bytes, where: str) -> tuple[Task, ...]:
    """Read the tasks of a `core.yaml`, in their order in the file."""
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(content)):
            raise ValueError(f"{where}: has aliases, which a list of tasks does not need")
        data = yaml.safe_load(content)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{where}: not YAML: {one_line(error)}") from None
    entries = data.get("icl_tasks") if isinstance(data, dict) else None
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{where}: no list of tasks under icl_tasks")
    tasks = tuple(_task(entry, f"{where}: task {n}") for n, entry in enumerate(entries, start=1))
    labels = [task.label for task in tasks]
    if twice := {label for label in labels if labels.count(label) > 1}:
        raise ValueError(f"{where}: {min(twice)} is there twice")
    return tasks


def _task(data: Any, where: str) -> Task:
    if not isinstance(data, dict):
        raise ValueError(f"{where}: not a table")
    try:
        entry = from_dict(_Entry, data)
        kind: Kind = one_of(Kind, entry.icl_task_type, "icl_task_type")
        if not entry.num_fewshot or entry.num_fewshot[0] < 0:
            raise ValueError(f"num_fewshot = {list(entry.num_fewshot)}")
        if not re.fullmatch(r"[\w-]{1,100}", entry.label):
            raise ValueError(f"label {entry.label!r} is not a word")
    except ValueError as error:
        raise ValueError(f"{where}: {str(error).removeprefix('config: ')}") from None
    return Task(
        label=entry.label,
        dataset=entry.dataset_uri,
        kind=kind,
        num_shots=entry.num_fewshot[0],
        delimiter=entry.continuation_delimiter,
    )


def read_examples(content: bytes, kind: Kind, where: str) -> list[Example]:
    """Read the examples of a file, in its order; the error for a bad line has its number."""
    lines = content.split(b"\n")  # not splitlines: some texts contain U+2028
    if lines[-1] == b"":
        lines.pop()
    if not lines:
        raise ValueError(f"{where}: no examples")
    return [_example(line, kind, f"{where}, line {n}") for n, line in enumerate(lines, start=1)]


def _example(line: bytes, kind: Kind, where: str) -> Example:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{where}: not an object")
    try:
        example = from_dict(EXAMPLES[kind], {k: v for k, v in data.items() if k not in ALSO_KNOWN})
    except ValueError as error:
        raise ValueError(f"{where}: {str(error).removeprefix('config: ')}") from None
    try:
        line.decode()
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeError:
        raise ValueError(f"{where}: is not valid Unicode text") from None
    for name in MUST_SAY_SOMETHING:
        if not getattr(example, name, "something").strip():
            raise ValueError(f"{where}: {name} is empty")
    if not isinstance(example, LanguageModeling):
        options = options_of(example)
        if len(options) < 2 or not all(option.strip() for option in options):
            raise ValueError(f"{where}: needs two options or more, none of them empty")
        if not 0 <= example.gold < len(options):
            raise ValueError(f"{where}: gold = {example.gold}, and there are {len(options)}")
    return example


def options_of(example: MultipleChoice | Schema) -> tuple[str, ...]:
    """The options that the model chooses from."""
    return example.choices if isinstance(example, MultipleChoice) else example.context_options


assert set(EXAMPLES) == set(get_args(Kind))
