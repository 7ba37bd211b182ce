"""A synthetic task: sequences drawn by number, questions in them, and an exact score.

A task is one file in this folder and one entry in `registry.py`. The file has a frozen dataclass of
settings and a subclass of `Task`. Nothing else in the package names a task: preparing, training,
NLL, accuracy, transport and `mixerloop data` read the declarations of the subclass.

A sequence is `context + 1` tokens. The answers are tokens of the sequence, and only the answers are
scored. Sequence i of a split depends on the settings, the split and i alone.
"""

from abc import ABC, abstractmethod
from typing import (
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    Protocol,
    Self,
    TypeVar,
    runtime_checkable,
)

import numpy as np
from jaxtyping import Int

from mixerloop.data.random import stream_key
from mixerloop.data.sources import Split
from mixerloop.data.windows import NOT_SCORED, Labelled

NUM_SEQUENCES: dict[Split, int] = {"train": 2**40, "held_out": 2**12}
"""Training never reads a sequence twice; the held-out sequences are a fixed set."""


@runtime_checkable
class TaskSettings(Protocol):
    """A frozen dataclass whose fields have defaults; it rejects invalid values."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def seed(self) -> int:
        """Random seed of the sequences."""
        ...


class Sequences(NamedTuple):
    """Whole sequences with the group of each question."""

    tokens: Int[np.ndarray, "sequences tokens"]
    groups: Int[np.ndarray, "sequences answers"]
    """One of `Task.groups` for each answer position."""


Settings = TypeVar("Settings", bound=TaskSettings)


class Task(ABC, Generic[Settings]):
    """The sequences of one split of a synthetic task, readable as windows."""

    name: ClassVar[str]
    """The name of the task in `mixerloop data prepare NAME`."""
    about: ClassVar[str]
    """Help text of `mixerloop data prepare NAME`."""
    settings_type: ClassVar[type[TaskSettings]]
    group_name: ClassVar[str]
    """The quantity that the numbers in `groups` count, in the plural."""

    def __init__(self, settings: Settings, split: Split) -> None:
        self.settings = settings
        self.num_windows = NUM_SEQUENCES[split]
        self.key = stream_key(self.name, settings.seed, split)
        """Key of the random numbers of this split."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Number of token ids, of questions and answers together."""

    @property
    @abstractmethod
    def num_answers(self) -> int:
        """Answers are token ids below this number."""

    @property
    @abstractmethod
    def context(self) -> int:
        """Tokens of a window: the length of a sequence minus one."""

    @property
    @abstractmethod
    def groups(self) -> tuple[int, ...]:
        """Every number that a question's group can have, in the order of results."""

    @property
    @abstractmethod
    def title(self) -> str:
        """The task and its size in a few words."""

    @abstractmethod
    def answer_positions(self) -> Int[np.ndarray, " answers"]:
        """Where the answers stand in every sequence, in increasing order."""

    @abstractmethod
    def sequences(self, indices: Int[np.ndarray, " sequences"]) -> Sequences:
        """The sequences with these numbers."""

    @abstractmethod
    def guesses(
        self, tokens: Int[np.ndarray, "sequences tokens"]
    ) -> Int[np.ndarray, "sequences answers"]:
        """The best answers possible without the skill that the task measures."""

    @abstractmethod
    def written(self, tokens: Int[np.ndarray, " tokens"]) -> str:
        """A sequence as text for people."""

    def longer(self) -> "Task[Settings] | None":
        """The same task, about twice as long or deep as in training, over the same vocabulary.

        None for a task that cannot be made longer with the tokens it has.
        """
        return None

    def longer_with(self, settings: Settings) -> Self:
        """The result of `longer`: this task with other settings and another random stream."""
        task = type(self)(settings, "held_out")
        task.key = stream_key(self.name, settings.seed, "longer")
        return task

    def read(self, indices: Int[np.ndarray, " windows"]) -> Labelled:
        """Sequences without their last token; labels at the answers only."""
        tokens = self.sequences(indices).tokens
        labels = np.full((len(indices), self.context), NOT_SCORED, dtype=np.int64)
        answers = self.answer_positions() - 1
        labels[:, answers] = tokens[:, answers + 1]
        return Labelled(tokens[:, :-1], labels)
