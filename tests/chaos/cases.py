"""The cases of damaged files: every file of a fixture x every damage x every verb that takes it."""

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from chaos.damage import DAMAGES, is_possible
from chaos.fixtures import PREPARE, QUICK, TRANSPORT, Place


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A verb with the fixtures it runs on, and those of them whose files are damaged."""

    name: str
    arguments: tuple[str, ...]
    brings: tuple[str, ...] = ()
    """Fixtures that are there and stay as they are."""
    damages: tuple[str, ...]
    """Fixtures whose files are damaged, one at a time."""
    lists: bool = False
    """Whether the verb shows many things, of which a damaged one must not hide the others."""
    shows_results: bool = False
    """Whether the verb shows whichever results are there."""
    resumes: bool = False
    """Whether files that an error leaves behind are those with which the same command resumes."""
    writes: str = r"(?!)"
    """The paths that the verb is documented to write, as a pattern."""
    timed: str = r"(?!)"
    """The paths among them that show how long the case took: only their presence is compared."""
    is_slow: bool = False
    """Whether a case takes more than half a second."""

    @property
    def is_quick(self) -> bool:
        """Whether the case and its fixtures take only a moment."""
        return not self.is_slow and QUICK.issuperset((*self.brings, *self.damages))


def _on_run(run: str, *brings: str) -> list[Reading]:
    """Verbs that take a run."""
    prompt = ("--prompt", "the", "--max-tokens", "4", "--json")
    step = f"{run}/checkpoints/step-2"
    common = {"brings": brings, "damages": (run,)}
    return [
        Reading(name=f"runs {run}", arguments=("runs", ".", "--json"), lists=True, **common),
        Reading(name=f"describe {run}", arguments=("describe", run, "--json"), **common),
        Reading(name=f"generate {run}", arguments=("generate", run, *prompt), **common),
        Reading(name=f"generate {step}", arguments=("generate", step, *prompt), **common),
        Reading(
            name=f"export {run}",
            arguments=("export", run, "--out", "new"),
            is_slow=True,  # it imports transformers
            **common,
        ),
        Reading(
            name=f"resume {run}",
            arguments=("train", "--resume", run),
            resumes=True,
            **common,
        ),
    ]


NLL = ("evaluate", "nll")
CORE = ("evaluate", "core")
NEW_STUDY = ("--jobs", "1")
STUDY_FILES = r"\w+/(report\.\w+|figures/.*|cells/.*|\w+/comparison\.json)$"
"""What a study writes beside its runs."""
TIMED_FILES = r"\w+/(report\.\w+|figures/(hops-cost\..*|written\.json))$"
"""What shows the seconds of training."""
READINGS: tuple[Reading, ...] = (
    *_on_run("run", "data"),
    Reading(name="runs, a table", arguments=("runs", "."), damages=("measured",), lists=True),
    Reading(name="nll run", arguments=(*NLL, "run", "--json"), brings=("data",), damages=("run",)),
    Reading(
        name="core run",
        arguments=(*CORE, "run", "--bundle", "bundle", "--json"),
        brings=("data", "bundle"),
        damages=("run",),
        resumes=True,
    ),
    Reading(
        name="core asked",
        arguments=(*CORE, "asked", "--bundle", "bundle", "--json"),
        brings=("data", "bundle"),
        damages=("asked",),
        resumes=True,
    ),
    Reading(
        name="compare measured other",
        shows_results=True,
        arguments=("evaluate", "compare", "measured", "other", "--json"),
        brings=("data", "other"),
        damages=("measured",),
    ),
    Reading(
        name="transport measured",
        arguments=("transport", "measured", *TRANSPORT, "--context", "16", "--json"),
        brings=("data",),
        damages=("measured",),
        is_slow=True,
    ),
    Reading(
        name="report measured",
        shows_results=True,
        arguments=("report", "measured", "--out", "new.html"),
        damages=("measured",),
        is_slow=True,
    ),
    Reading(
        name="init with the tokenizer of run",
        arguments=(
            *("init", "text.toml", "--out", "new", "--tokenizer"),
            "run/checkpoints/step-4/tokenizer.model",
        ),
        brings=("text.toml",),
        damages=("run",),
    ),
    *_on_run("half", "data"),
    Reading(
        name="nll hopsrun",
        arguments=(*NLL, "hopsrun", "--json"),
        brings=("hops",),
        damages=("hopsrun",),
        is_slow=True,
    ),
    Reading(
        name="hops hopsrun",
        arguments=("evaluate", "hops", "hopsrun", "--sequences", "16", "--json"),
        brings=("hops",),
        damages=("hopsrun",),
    ),
    Reading(
        name="task hopsrun",
        arguments=("evaluate", "task", "hopsrun", "--sequences", "16", "--json"),
        brings=("hops",),
        damages=("hopsrun",),
    ),
    Reading(
        name="report hopsrun",
        shows_results=True,
        arguments=("report", "hopsrun", "--out", "new.html", "--json"),
        damages=("hopsrun",),
        is_slow=True,
    ),
    Reading(
        name="train on data",
        arguments=("train", "text.toml", "--out", "new"),
        brings=("text.toml",),
        damages=("data",),
        resumes=True,
    ),
    Reading(
        name="resume half, its data",
        arguments=("train", "--resume", "half"),
        brings=("half",),
        damages=("data",),
        resumes=True,
    ),
    Reading(name="verify data", arguments=("data", "verify", "data"), damages=("data",)),
    Reading(name="show data", arguments=("data", "show", "data"), damages=("data",)),
    Reading(
        name="prepare into data",
        arguments=(*PREPARE, "--out", "begun"),
        brings=("source",),
        damages=("begun",),
        resumes=True,
        is_slow=True,
    ),
    Reading(
        name="nll run, its data",
        arguments=(*NLL, "run", "--json"),
        brings=("run",),
        damages=("data",),
    ),
    Reading(
        name="transport run, its data",
        arguments=("transport", "run", *TRANSPORT, "--context", "16", "--json"),
        brings=("run",),
        damages=("data",),
        is_slow=True,
    ),
    Reading(
        name="generate run, its data",
        arguments=("generate", "run", "--prompt", "the", "--max-tokens", "4", "--json"),
        brings=("run",),
        damages=("data",),
    ),
    Reading(
        name="init with the tokenizer of data",
        arguments=("init", "text.toml", "--tokenizer", "data/tokenizer.model", "--out", "new"),
        brings=("text.toml",),
        damages=("data",),
    ),
    Reading(
        name="train on hops",
        arguments=("train", "hops.toml", "--out", "new"),
        brings=("hops.toml",),
        damages=("hops",),
        resumes=True,
    ),
    Reading(name="verify hops", arguments=("data", "verify", "hops"), damages=("hops",)),
    Reading(name="show hops", arguments=("data", "show", "hops"), damages=("hops",)),
    Reading(
        name="hops hopsrun, its data",
        arguments=("evaluate", "hops", "hopsrun", "--sequences", "16", "--json"),
        brings=("hopsrun",),
        damages=("hops",),
    ),
    Reading(
        name="study, finished",
        arguments=("study", "study.toml", "--out", "study", *NEW_STUDY),
        writes=STUDY_FILES,
        brings=("study.toml", "hops.toml"),
        damages=("study",),
        resumes=True,
        is_slow=True,
    ),
    Reading(
        name="study, half done",
        arguments=("study", "halfstudy.toml", "--out", "halfstudy", *NEW_STUDY),
        writes=STUDY_FILES,
        timed=TIMED_FILES,
        brings=("halfstudy.toml", "hops.toml"),
        damages=("halfstudy",),
        resumes=True,
        is_slow=True,
    ),
    Reading(
        name="study status",
        arguments=("study", "status", "study", "--json"),
        damages=("study",),
        lists=True,
    ),
    Reading(
        name="study status, half done",
        arguments=("study", "status", "halfstudy"),
        damages=("halfstudy",),
        lists=True,
    ),
    Reading(
        name="report study",
        shows_results=True,
        arguments=("report", "study"),
        damages=("study",),
        writes=STUDY_FILES,
        is_slow=True,
    ),
    Reading(
        name="runs of a study",
        arguments=("runs", "study/hops", "--json"),
        damages=("study",),
        lists=True,
    ),
    Reading(
        name="compare cells",
        shows_results=True,
        arguments=(
            *("evaluate", "compare", "study/hops/no_loop-seed1"),
            *("study/hops/mixer_loop(2)-seed1", "--json"),
        ),
        damages=("study",),
    ),
    Reading(
        name="import exported",
        arguments=("import", "exported", "--out", "new"),
        damages=("exported",),
    ),
    Reading(
        name="generate exported",
        arguments=("generate", "exported", "--prompt", "the", "--max-tokens", "4", "--json"),
        damages=("exported",),
    ),
    Reading(
        name="describe exported",
        arguments=("describe", "exported", "--json"),
        damages=("exported",),
    ),
    Reading(
        name="nll exported",
        arguments=(
            *(*NLL, "exported", "--data", "data", "--context", "32", "--out", "new", "--json"),
        ),
        brings=("data",),
        damages=("exported",),
    ),
    *(
        Reading(
            name=f"core with {path}",
            arguments=(*CORE, "run", "--bundle", path, "--out", "new", "--json"),
            brings=("data", "run"),
            damages=(damaged,),
            resumes=True,
        )
        for path, damaged in (
            ("bundle", "bundle"),
            ("archives/bundle.zip", "archives"),
            ("archives/bundle.tar.xz", "archives"),
        )
    ),
)


@dataclass(frozen=True)
class FileCase:
    """A damage to one file, before a verb reads it."""

    reading: Reading
    file: str
    damage: str

    @property
    def id(self) -> str:
        """The name of the case, for `--only`."""
        return f"{self.reading.name}: {self.damage} {self.file}"

    @property
    def group(self) -> tuple[str, str]:
        """A sample takes as many cases of each group, as far as there are any."""
        return self.reading.name, self.damage

    def draw(self, seed: int) -> random.Random:
        """The random numbers of this case, whichever other cases run."""
        return random.Random(f"{seed} {self.id}")


def file_cases(place: Place, readings: Iterable[Reading] = READINGS) -> list[FileCase]:
    """All cases, in a fixed order."""
    cases = []
    for reading in readings:
        place.need((*reading.brings, *reading.damages))
        for name in reading.damages:
            for path in _files(place.root / name):
                file = path.relative_to(place.root).as_posix()
                cases += [
                    FileCase(reading, file, damage)
                    for damage in DAMAGES
                    if is_possible(damage, path, place.root)
                ]
    return cases


def _files(path: Path) -> list[Path]:
    return sorted(found for found in path.rglob("*") if found.is_file())


class Grouped(Protocol):
    """A case that has a name and belongs to a group."""

    @property
    def id(self) -> str: ...

    @property
    def group(self) -> tuple[str, str]: ...


C = TypeVar("C", bound=Grouped)


def sample(cases: Sequence[C], number: int, *, seed: int) -> list[C]:
    """A seeded sample that takes cases from all groups in turn."""
    draw = random.Random(seed)
    groups: dict[tuple[str, str], list[C]] = defaultdict(list)
    for case in cases:
        groups[case.group].append(case)
    for group in groups.values():
        draw.shuffle(group)
    order = list(groups.values())
    draw.shuffle(order)
    taken: list[C] = []
    while len(taken) < number and any(order):
        for group in order:
            if group and len(taken) < number:
                taken.append(group.pop())
    return taken
