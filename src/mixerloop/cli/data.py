"""`mixerloop data`: prepare corpora, verify them, and show samples."""

import json
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Union

import tyro

from mixerloop.data import preparation
from mixerloop.data.preparation import PreparationResult
from mixerloop.data.prepare import Progress
from mixerloop.data.prepared import open_prepared, verify_prepared
from mixerloop.data.tasks.registry import TASKS
from mixerloop.data.tasks.task import Task, TaskSettings
from mixerloop.messages import shell_word
from mixerloop.progress_line import preparing_progress, says_how_to_resume

HELP = """Prepare a corpus as verified shards, verify prepared data, or show samples of it.

examples:
  mixerloop data prepare stdlib --out data/stdlib
  mixerloop data verify data/stdlib
  mixerloop data show data/stdlib
"""
PREPARE_HELP = """\
Turn a source into a folder that training reads; the same command resumes after a stop.

examples:
  mixerloop data prepare stdlib --out data/stdlib
  mixerloop data prepare hops --out data/hops
  mixerloop data prepare text books/ notes.jsonl.xz --vocab-size 8192 --out data/mine
  mixerloop data prepare climbmix --shards 0-9 --tokenizer llama2.model --out data/climbmix
"""
CLIMBMIX_EXAMPLES = """
examples:
  mixerloop data prepare climbmix --shards 0 --vocab-size 8192 --out data/climbmix
  mixerloop data prepare climbmix --from parquet/ --tokenizer llama2.model --out data/climbmix
"""
TEXT_EXAMPLES = """
examples:
  mixerloop data prepare text books/ notes.jsonl.xz --vocab-size 8192 --out data/mine
  mixerloop data prepare text train.jsonl --held-out test.jsonl --vocab-size 512 --out data/two
"""
STDLIB_EXAMPLES = """
examples:
  mixerloop data prepare stdlib --out data/stdlib
  mixerloop data prepare stdlib --vocab-size 2048 --workers 2 --out data/stdlib-2k --json
"""
TASK_EXAMPLES = """
examples:
  mixerloop data prepare {task} --out data/{task}
  mixerloop data prepare {task} --seed 2 --out data/{task}-2 --json
"""
VERIFY_HELP = """Hash every file again, and check that no document is in both splits.

examples:
  mixerloop data verify data/stdlib
  mixerloop data verify data/stdlib --json
"""
SHOW_HELP = """Show counts and decoded samples.

examples:
  mixerloop data show data/stdlib
  mixerloop data show data/stdlib --samples 5 --characters 1000
"""


@dataclass(frozen=True, kw_only=True)
class PrepareSource(preparation.Preparation):
    """The options of every source, beside those of its preparation."""

    out: Path
    """The folder to make, or to resume."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Prepare the data and print its counts, or JSON."""
        with says_how_to_resume():
            prepared = self.prepare(self.out, progress=None if self.json else preparing_progress())
        if self.json:
            print(json.dumps(prepared.facts, indent=2))
        else:
            print("\n".join(prepared.lines))
            print(f"next: mixerloop data show {shell_word(self.out)}")


@dataclass(frozen=True, kw_only=True)
class Climbmix(preparation.ClimbmixPreparation, PrepareSource):
    """The options of `mixerloop data prepare climbmix`."""

    from_: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """A folder with the parquet files; by default they are downloaded."""


@dataclass(frozen=True, kw_only=True)
class Text(preparation.TextPreparation, PrepareSource):
    """The options of `mixerloop data prepare text`."""

    paths: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Files, or folders to search for files."""


@dataclass(frozen=True, kw_only=True)
class Stdlib(preparation.StdlibPreparation, PrepareSource):
    """The options of `mixerloop data prepare stdlib`."""


@dataclass(frozen=True, kw_only=True)
class PrepareTask(PrepareSource):
    """The options of `mixerloop data prepare TASK`, beside the settings of the task."""

    settings_type: ClassVar[type[TaskSettings]]

    out: Path
    """The folder to make."""

    def prepare(self, out: Path, *, progress: Progress | None = None) -> PreparationResult:
        """Write a folder with the task's settings; training draws sequences from them."""
        names = self.settings_type.__dataclass_fields__
        settings = self.settings_type(**{name: getattr(self, name) for name in names})
        return preparation.TaskPreparation(settings=settings).prepare(out, progress=progress)


def _task_options(task: type[Task]) -> type:
    """Options that are the settings of a task.

    `prepare` checks the settings: tyro would print a frame around an error of `__post_init__`.
    """
    own = {"settings_type": task.settings_type, "__post_init__": lambda options: None}
    bases = (task.settings_type, PrepareTask)
    return make_dataclass(task.name, [], bases=bases, namespace=own, frozen=True, kw_only=True)


def _subcommand(name: str, options: type, about: str, examples: str) -> Any:
    return Annotated[options, tyro.conf.subcommand(name, description=f"{about}\n{examples}")]


if TYPE_CHECKING:
    Source = Climbmix | Text | Stdlib | PrepareTask
else:
    Source = Union[
        _subcommand("climbmix", Climbmix, Climbmix.about, CLIMBMIX_EXAMPLES),
        _subcommand("text", Text, Text.about, TEXT_EXAMPLES),
        _subcommand("stdlib", Stdlib, Stdlib.about, STDLIB_EXAMPLES),
        *(
            _subcommand(name, _task_options(task), task.about, TASK_EXAMPLES.format(task=name))
            for name, task in TASKS.items()
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class Prepare:
    """The options of `mixerloop data prepare`."""

    source: Source

    def run(self) -> None:
        """Run the preparation of the source that the subcommand names."""
        self.source.run()


@dataclass(frozen=True, kw_only=True)
class Verify:
    """The options of `mixerloop data verify`."""

    folder: tyro.conf.Positional[Path]
    """A prepared folder."""
    seal: bool = False
    """Seal a folder of version 0.1.0, which wrote no contents.json, once all else is checked."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Hash all files again and look for documents that are in both splits."""
        prepared, proved = verify_prepared(self.folder, seal=self.seal)
        if self.json:
            print(json.dumps(prepared.summary() | {"verified": True}, indent=2))
        else:
            print("\n".join([*prepared.counts(), proved]))


@dataclass(frozen=True, kw_only=True)
class Show:
    """The options of `mixerloop data show`."""

    folder: tyro.conf.Positional[Path]
    """A prepared folder."""
    samples: int = 2
    """Documents to show of each split."""
    characters: int = 300
    """Characters to show of each document."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Print the counts and some decoded samples, or JSON."""
        prepared = open_prepared(self.folder)
        samples = prepared.samples(self.samples, characters=self.characters)
        if self.json:
            facts = prepared.summary() | {"samples": samples}
            print(json.dumps(facts, indent=2, ensure_ascii=False))
            return
        texts = [f"\n--- {split}\n{text}" for split in samples for text in samples[split]]
        print(*prepared.counts(), *texts, sep="\n")


@dataclass(frozen=True, kw_only=True)
class Data:
    """The options of `mixerloop data`."""

    action: (
        Annotated[Prepare, tyro.conf.subcommand("prepare", description=PREPARE_HELP)]
        | Annotated[Verify, tyro.conf.subcommand("verify", description=VERIFY_HELP)]
        | Annotated[Show, tyro.conf.subcommand("show", description=SHOW_HELP)]
    )

    def run(self) -> None:
        """Run the action that the subcommand names."""
        self.action.run()
