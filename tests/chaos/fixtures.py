"""Small folders of every sort that the program writes or reads, made by its own verbs.

Names in `MAKERS` are files and folders of one place. They are made when a case first needs them.
"""

import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import law_study
from chaos import program
from small_model import training_file

BUNDLE = Path(__file__).parents[1] / "data" / "core_bundle"
VOCAB = 300
TRAIN = {"global_batch": 2, "checkpoint_every": 2, "evaluate_windows": 8}
EXPERTS = {"ffn": "experts", "num_experts": 4, "schedule": "full_loop(2)"}
STUDY = """
title = "A small study"
about = "For the tests."

[[parts]]
name = "hops"
config = "hops.toml"
prepare = ["hops"]
arms = ["no_loop", "mixer_loop(2)"]
seeds = [1]
measure = ["nll", "hops"]
"""
PREFILL = """
[prefill]
sizes = ["nano"]
batches = [1]
length = 8
warmup = 1
repeats = 1
"""
"""Timed once: it is part of the finished study, so that no case times anything."""
TRANSPORT = ("--windows", "2", "--positions", "2")
EVENTS = "events.out.tfevents.0000000000.host.1.0"
"""A fixed name for the TensorBoard file, whose own name holds the time and the process."""


class Place:
    """A folder of fixtures; `need` makes what is not there yet."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(exist_ok=True)
        for name in ("home", "tmp"):
            (root / name).mkdir(exist_ok=True)

    def need(self, names: Iterable[str]) -> None:
        """Make these fixtures and whatever they are made from."""
        for name in names:
            if not (self.root / name).exists():
                before, make = MAKERS[name]
                self.need(before)
                make(self)

    def verb(self, *arguments: object, before: Callable[[], None] | None = None, code=0) -> None:
        """Run a verb in this place, and expect its exit code."""
        words = [str(argument) for argument in arguments]
        ended = program.run(words, self.root, before=before)
        assert ended.code == code, f"{' '.join(words)}: {ended}"

    def write(self, name: str, text: str) -> None:
        """Write a file of the user."""
        (self.root / name).write_text(text)

    def trained(self, config: str, out: str, *options: object) -> None:
        """Train a run and give its TensorBoard file a fixed name."""
        self.verb("train", config, "--out", out, *options)
        self.name_events(out)

    def name_events(self, folder: str) -> None:
        """Rename TensorBoard files, so that the names of cases are the same every time."""
        for events in (self.root / folder).rglob("events.out.tfevents.*"):
            events.rename(events.with_name(EVENTS))


def _stories() -> list[str]:
    lines = (BUNDLE / "eval_data/made/colours.jsonl").read_text().splitlines()
    text = "\n".join(f"{line} tale {number}" for number in range(40) for line in lines)
    return [json.dumps({"text": text[at : at + 150]}) for at in range(0, 30_000, 150)]


def _source(place: Place) -> None:
    (place.root / "source").mkdir()
    stories = _stories()
    place.write("source/train.jsonl", "\n".join(stories[:160]) + "\n")
    place.write("source/held_out.jsonl", "\n".join(stories[160:]) + "\n")


PREPARE = (
    *("data", "prepare", "text", "source/train.jsonl", "--held-out", "source/held_out.jsonl"),
    *("--vocab-size", str(VOCAB), "--workers", "1"),
)


def _stop_before_the_held_out_files() -> None:
    from mixerloop.data import prepare

    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    assert hasattr(prepare, "_write_excluded")
    prepare._write_excluded = stop


def _begun(place: Place) -> None:
    place.verb(*PREPARE, "--out", "begun", before=_stop_before_the_held_out_files, code=130)


def _text_config(place: Place) -> None:
    place.write(
        "text.toml",
        training_file("data", context=32, train=TRAIN, vocab_size=VOCAB, schedule="mixer_loop(2)"),
    )


def _hops_config(place: Place) -> None:
    place.write("hops.toml", training_file("hops", train=TRAIN, schedule="mixer_loop(2)"))


def _experts_config(place: Place) -> None:
    place.write("experts.toml", training_file("hops", train=TRAIN, **EXPERTS))


def _experts_run(place: Place) -> None:
    place.trained("experts.toml", "expertsrun")


def _run(place: Place) -> None:
    place.trained("text.toml", "run")
    place.verb("evaluate", "nll", "run")
    place.verb("evaluate", "core", "run", "--bundle", "bundle")


def _measured(place: Place) -> None:
    """A run that has a result of transport too."""
    shutil.copytree(place.root / "run", place.root / "measured")
    place.verb("transport", "measured", *TRANSPORT, "--context", 16)


def _other(place: Place) -> None:
    place.trained("text.toml", "other", "--train.seed", 2)
    place.verb("evaluate", "nll", "other")
    place.verb("evaluate", "core", "other", "--bundle", "bundle")


def _half(place: Place) -> None:
    place.trained("text.toml", "half", "--until", 2)


def _asked(place: Place) -> None:
    """A run for which two of three tasks of CORE were asked."""
    shutil.copytree(place.root / "run", place.root / "asked")
    shutil.rmtree(place.root / "asked" / "results")
    tasks = ("--tasks", "colours", "pronouns")
    place.verb("evaluate", "core", "asked", "--bundle", "bundle", *tasks)


def _hops_run(place: Place) -> None:
    place.trained("hops.toml", "hopsrun")
    for measure in ("nll", "hops", "task"):
        place.verb("evaluate", measure, "hopsrun", *(("--sequences", 16) * (measure != "nll")))


def _study(place: Place) -> None:
    place.verb("study", "study.toml", "--out", "study", "--jobs", 1)
    place.name_events("study")


def _half_study(place: Place) -> None:
    place.verb("study", "halfstudy.toml", "--out", "halfstudy", "--jobs", 1, "--cells", "1")
    place.name_events("halfstudy")


def _bundle(place: Place) -> None:
    shutil.copytree(BUNDLE, place.root / "bundle")


def _archives(place: Place) -> None:
    archives = place.root / "archives"
    archives.mkdir()
    files = sorted(path for path in BUNDLE.rglob("*") if path.is_file())
    with zipfile.ZipFile(archives / "bundle.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            archive.writestr(
                zipfile.ZipInfo(file.relative_to(BUNDLE).as_posix()),
                file.read_bytes(),
                zipfile.ZIP_DEFLATED,
            )
    with tarfile.open(archives / "bundle.tar.xz", "w:xz") as archive:
        for file in files:
            archive.add(file, file.relative_to(BUNDLE).as_posix(), filter=_without_owner)


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def _climbmix(place: Place) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (place.root / "climbmix").mkdir()
    texts = [json.loads(story)["text"] for story in _stories()]
    for number, part in ((0, texts[:160]), (6542, texts[160:])):
        table = pa.table({"text": part})
        pq.write_table(table, place.root / "climbmix" / f"shard_{number:05d}.parquet")


def _words(place: Place) -> None:
    shutil.copy(place.root / "data" / "tokenizer.model", place.root / "words.model")


def _law_study(place: Place) -> None:
    law_study.write_study(place.root / "lawstudy", {**law_study.SIZES, **law_study.MEDIUM})


MAKERS: dict[str, tuple[tuple[str, ...], Callable[[Place], None]]] = {
    "source": ((), _source),
    "lawstudy": ((), _law_study),
    "data": (("source",), lambda place: place.verb(*PREPARE, "--out", "data")),
    "begun": (("source",), _begun),
    "hops": ((), lambda place: place.verb("data", "prepare", "hops", "--out", "hops")),
    "words.model": (("data",), _words),
    "text.toml": ((), _text_config),
    "hops.toml": ((), _hops_config),
    "study.toml": ((), lambda place: place.write("study.toml", STUDY + PREFILL)),
    "halfstudy.toml": ((), lambda place: place.write("halfstudy.toml", STUDY)),
    "folder": ((), lambda place: (place.root / "folder").mkdir()),
    "bundle": ((), _bundle),
    "archives": ((), _archives),
    "climbmix": ((), _climbmix),
    "run": (("data", "text.toml", "bundle"), _run),
    "measured": (("run",), _measured),
    "other": (("data", "text.toml", "bundle"), _other),
    "half": (("data", "text.toml"), _half),
    "asked": (("run",), _asked),
    "hopsrun": (("hops", "hops.toml"), _hops_run),
    "experts.toml": ((), _experts_config),
    "expertsrun": (("hops", "experts.toml"), _experts_run),
    "study": (("study.toml", "hops.toml"), _study),
    "halfstudy": (("halfstudy.toml", "hops.toml"), _half_study),
    "exported": (("run",), lambda place: place.verb("export", "run", "--out", "exported")),
}
"""For each fixture the fixtures that it is made from, and the function that makes it."""


QUICK = {"source", "data", "text.toml", "bundle", "run", "half", "hops", "words.model", "folder"}
"""Fixtures that are made in a moment."""


def copy(place: Place, names: Iterable[str], box: Path) -> None:
    """A test folder with copies of these fixtures."""
    box.mkdir(parents=True)
    for name in ("home", "tmp"):
        (box / name).mkdir()
    for name in names:
        source = place.root / name
        if source.is_dir():
            shutil.copytree(source, box / name)
        else:
            shutil.copy2(source, box / name)


def remove(box: Path) -> None:
    """Remove a test folder, whatever its permissions are."""
    for folder, _, _ in os.walk(box):
        Path(folder).chmod(0o700)
    shutil.rmtree(box)
