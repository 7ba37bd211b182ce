"""`mixerloop data`: prepare corpora, verify them, look at them."""

import json
from dataclasses import dataclass, fields, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Union

import tyro

from mixerloop.data.preparation import (
    ClimbmixPreparation,
    Preparation,
    PreparationResult,
    StdlibPreparation,
    TaskPreparation,
    TextPreparation,
)
from mixerloop.data.tasks.registry import TASKS
from mixerloop.data.tasks.task import Task, TaskSettings
from mixerloop.progress_line import preparing_progress, says_how_to_resume

if TYPE_CHECKING:
    from mixerloop.data.prepare import Progress

HELP = """Prepare a corpus into verified shards, check one, or look at one.

examples:
  mixerloop data prepare stdlib --out data/stdlib
  mixerloop data verify data/stdlib
  mixerloop data show data/stdlib
"""
PREPARE_HELP = """\
Turn a source into a folder that training reads; stopped and started again, it goes on.

examples:
  mixerloop data prepare stdlib --out data/stdlib
  mixerloop data prepare hops --out data/hops
  mixerloop data prepare text books/ notes.jsonl.xz --vocab-size 8192 --out data/mine
  mixerloop data prepare climbmix --shards 0-9 --tokenizer llama2.model --out data/climbmix
"""


@dataclass(frozen=True, kw_only=True)
class PrepareSource(Preparation):
    """The options of every source, beside those of its preparation."""

    out: Path
    """The folder to make, or to go on with."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Prepare and report."""
        with says_how_to_resume():
            prepared = self.prepare(self.out, progress=None if self.json else preparing_progress())
        if self.json:
            print(json.dumps(prepared.facts, indent=2))
        else:
            print("\n".join(prepared.lines))
            print(f"next: mixerloop data show {self.out}")


@dataclass(frozen=True, kw_only=True)
class Climbmix(ClimbmixPreparation, PrepareSource):
    """The options of `mixerloop data prepare climbmix`."""

    from_: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """A folder that holds the parquet files; they are downloaded where none is given."""


@dataclass(frozen=True, kw_only=True)
class Text(TextPreparation, PrepareSource):
    """The options of `mixerloop data prepare text`."""

    paths: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Files, or folders that are searched for them."""


@dataclass(frozen=True, kw_only=True)
class Stdlib(StdlibPreparation, PrepareSource):
    """The options of `mixerloop data prepare stdlib`."""


@dataclass(frozen=True, kw_only=True)
class PrepareTask(PrepareSource):
    """The options of `mixerloop data prepare TASK`, beside the settings of the task."""

    settings_type: ClassVar[type[TaskSettings]]

    out: Path
    """The folder to make."""

    def prepare(self, out: Path, *, progress: "Progress | None" = None) -> PreparationResult:
        """Write the settings."""
        names = [field.name for field in fields(self.settings_type)]  # pyright: ignore[reportArgumentType]
        settings = self.settings_type(**{name: getattr(self, name) for name in names})
        return TaskPreparation(settings=settings).prepare(out, progress=progress)


def _not_checked_yet(options: PrepareTask) -> None:
    """Leave the check of settings to `prepare`: tyro would print a frame around their error."""


def _options(task: type[Task]) -> Any:
    """A subcommand whose options are the settings of a task."""
    options = make_dataclass(
        task.name,
        [],
        bases=(task.settings_type, PrepareTask),
        namespace={"settings_type": task.settings_type, "__post_init__": _not_checked_yet},
        frozen=True,
        kw_only=True,
    )
    return Annotated[options, tyro.conf.subcommand(task.name, description=task.about)]


def _source(name: str, options: type[Any]) -> Any:
    return Annotated[options, tyro.conf.subcommand(name, description=options.about)]


if TYPE_CHECKING:
    Source = Climbmix | Text | Stdlib | PrepareTask
else:
    Source = Union[
        _source("climbmix", Climbmix),
        _source("text", Text),
        _source("stdlib", Stdlib),
        *map(_options, TASKS.values()),
    ]


@dataclass(frozen=True, kw_only=True)
class Prepare:
    """The options of `mixerloop data prepare`."""

    source: Source

    def run(self) -> None:
        """Prepare the source."""
        self.source.run()


@dataclass(frozen=True, kw_only=True)
class Verify:
    """The options of `mixerloop data verify`."""

    folder: tyro.conf.Positional[Path]
    """A prepared folder."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Hash everything again and look for documents in both splits."""
        from mixerloop.data.prepared import open_prepared

        prepared = open_prepared(self.folder)
        proved = prepared.verify()
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
    """How much of a document to show."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Print counts and samples."""
        from mixerloop.data.prepared import open_prepared

        prepared = open_prepared(self.folder)
        samples = prepared.samples(self.samples, characters=self.characters)
        if self.json:
            facts = prepared.summary() | {"samples": samples}
            print(json.dumps(facts, indent=2, ensure_ascii=False))
            return
        for line in prepared.counts():
            print(line)
        for split, texts in samples.items():
            for text in texts:
                print(f"\n--- {split}\n{text}")


@dataclass(frozen=True, kw_only=True)
class Data:
    """The options of `mixerloop data`."""

    action: (
        Annotated[Prepare, tyro.conf.subcommand("prepare", description=PREPARE_HELP)]
        | Annotated[
            Verify,
            tyro.conf.subcommand("verify", description="Hash every file again; prove the split."),
        ]
        | Annotated[Show, tyro.conf.subcommand("show", description="Counts and samples, decoded.")]
    )

    def run(self) -> None:
        """Run the chosen action."""
        self.action.run()
