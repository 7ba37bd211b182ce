"""`mixerloop data`: prepare corpora, verify them, look at them."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from mixerloop import paper

if TYPE_CHECKING:
    from mixerloop.data.prepare import Progress
    from mixerloop.data.shards import Manifest

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
CLIMBMIX_HELP = (
    "The paper's corpus, shards 00000-00169 and 06542 held out, from the Hugging Face hub."
)
TEXT_HELP = "Your own .txt, .jsonl (.xz, .gz, .zst) and .parquet files, or folders of them."
STDLIB_HELP = "The source of this Python's standard library: text on every machine, no download."
HOPS_HELP = (
    "A task made on the fly that needs one look-up after another; only settings are written."
)

PAPERS = {
    "tokenizer": f"not the paper's, whose sha256 is {paper.TOKENIZER_SHA256}",
    "train_tokens": f"not the paper's {paper.TRAIN_TOKENS:,}, from shards 0-169",
}


@dataclass(frozen=True, kw_only=True)
class _Tokens:
    """What every source of text takes."""

    out: Path
    """The folder to make, or to go on with."""
    tokenizer: Path | None = None
    """A SentencePiece model; one is trained on the source where none is given."""
    vocab_size: int | None = None
    """Size of the tokenizer to train, 4,096 unless you say otherwise."""
    workers: int = os.cpu_count() or 1
    """Processes that tokenise; the result does not depend on it."""
    json: bool = False
    """Print JSON for programs."""

    def _told(self) -> "Progress | None":
        return None if self.json else _progress()

    def _report(self, manifest: "Manifest") -> None:
        agrees = self._beside_the_paper(manifest)
        if self.json:
            print(json.dumps(summary(self.out, manifest) | {"as_in_the_paper": agrees}, indent=2))
            return
        show_counts(self.out, manifest)
        for what, same in agrees.items():
            print(f"  {what.replace('_', ' ')}: {'as in the paper' if same else PAPERS[what]}")
        print(f"next: mixerloop data show {self.out}")

    def _beside_the_paper(self, manifest: "Manifest") -> dict[str, bool]:
        """Which facts of this data equal the paper's; empty for other sources."""
        return {}


@dataclass(frozen=True, kw_only=True)
class Climbmix(_Tokens):
    """The options of `mixerloop data prepare climbmix`."""

    shards: str = "0-169"
    """Training shards, a number or a range such as 0-9."""
    from_: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """A folder that holds the parquet files; they are downloaded where none is given."""

    def run(self) -> None:
        """Prepare ClimbMix."""
        from mixerloop.data.corpora import prepare_climbmix

        with _says_how_to_resume():
            manifest = prepare_climbmix(
                self.out,
                shards=_range(self.shards),
                source=self.from_,
                tokenizer=self.tokenizer,
                vocab_size=self.vocab_size,
                workers=self.workers,
                progress=self._told(),
            )
        self._report(manifest)

    def _beside_the_paper(self, manifest: "Manifest") -> dict[str, bool]:
        tokens = sum(shard.tokens for shard in manifest.train)
        return {
            "tokenizer": manifest.tokenizer_sha256 == paper.TOKENIZER_SHA256,
            "train_tokens": tokens == paper.TRAIN_TOKENS,
        }


@dataclass(frozen=True, kw_only=True)
class Text(_Tokens):
    """The options of `mixerloop data prepare text`."""

    paths: tyro.conf.Positional[list[Path]]
    """Files, or folders that are searched for them."""
    held_out: list[Path] = field(default_factory=list)
    """Files that are held out whole; without any, documents are held out by their hash."""
    held_out_share: float | None = None
    """Share of the documents that is held out by hash, 0.01 unless you say otherwise."""

    def run(self) -> None:
        """Prepare text files."""
        from mixerloop.data.corpora import prepare_text

        with _says_how_to_resume():
            manifest = prepare_text(
                self.paths,
                self.out,
                held_out=self.held_out,
                held_out_share=self.held_out_share,
                tokenizer=self.tokenizer,
                vocab_size=self.vocab_size,
                workers=self.workers,
                progress=self._told(),
            )
        self._report(manifest)


@dataclass(frozen=True, kw_only=True)
class Stdlib(_Tokens):
    """The options of `mixerloop data prepare stdlib`."""

    held_out_share: float = 0.05
    """Share of the files that is held out by hash."""

    def run(self) -> None:
        """Prepare the standard library."""
        from mixerloop.data.corpora import prepare_stdlib

        with _says_how_to_resume():
            manifest = prepare_stdlib(
                self.out,
                held_out_share=self.held_out_share,
                tokenizer=self.tokenizer,
                vocab_size=self.vocab_size,
                workers=self.workers,
                progress=self._told(),
            )
        self._report(manifest)


@dataclass(frozen=True, kw_only=True)
class Hops:
    """The options of `mixerloop data prepare hops`."""

    out: Path
    """The folder to make."""
    num_nodes: int = 8
    """Nodes in the permutation."""
    num_queries: int = 8
    """Questions in a sequence."""
    max_hops: int = 4
    """Hops are drawn from 1 to this many."""
    seed: int = 0
    """Seed of the sequences."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Write the settings."""
        from mixerloop.data.corpora import prepare_hops
        from mixerloop.data.hops import HopsSettings

        settings = HopsSettings(
            num_nodes=self.num_nodes,
            num_queries=self.num_queries,
            max_hops=self.max_hops,
            seed=self.seed,
        )
        prepare_hops(self.out, settings)
        if self.json:
            print(json.dumps({"folder": str(self.out), **asdict(settings)}, indent=2))
        else:
            print(f"{self.out}: hops over {self.num_nodes} nodes, made as they are needed")
            print(f"next: mixerloop data show {self.out}")


@dataclass(frozen=True, kw_only=True)
class Prepare:
    """The options of `mixerloop data prepare`."""

    source: (
        Annotated[Climbmix, tyro.conf.subcommand("climbmix", description=CLIMBMIX_HELP)]
        | Annotated[Text, tyro.conf.subcommand("text", description=TEXT_HELP)]
        | Annotated[Stdlib, tyro.conf.subcommand("stdlib", description=STDLIB_HELP)]
        | Annotated[Hops, tyro.conf.subcommand("hops", description=HOPS_HELP)]
    )

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
        from mixerloop.data.batches import hops_settings
        from mixerloop.data.shards import verify

        if hops_settings(self.folder) is not None:
            facts = {"folder": str(self.folder), "verified": True}
            print(json.dumps(facts) if self.json else f"{self.folder}: settings of hops, sound")
            return
        manifest = verify(self.folder)
        if self.json:
            print(json.dumps(summary(self.folder, manifest) | {"verified": True}, indent=2))
        else:
            show_counts(self.folder, manifest)
            print("every file is as it was written, and no document is in both splits")


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
        from mixerloop.data.batches import hops_settings
        from mixerloop.data.samples import hops_samples, token_samples
        from mixerloop.data.shards import read_manifest

        settings = hops_settings(self.folder)
        manifest = None if settings is not None else read_manifest(self.folder)
        if manifest is None:
            assert settings is not None
            facts = {"folder": str(self.folder), **asdict(settings)}
            samples = hops_samples(settings, self.samples)
        else:
            facts = summary(self.folder, manifest)
            samples = token_samples(self.folder, self.samples, self.characters)
        if self.json:
            print(json.dumps(facts | {"samples": samples}, indent=2, ensure_ascii=False))
            return
        if manifest is not None:
            show_counts(self.folder, manifest)
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
        """Do it."""
        self.action.run()


def summary(folder: Path, manifest: "Manifest") -> dict[str, object]:
    """The counts of a prepared folder."""
    splits = {"train": manifest.train, "held_out": manifest.held_out}
    return {
        "folder": str(folder),
        "source": manifest.source["kind"],
        "vocab_size": manifest.vocab_size,
        "tokenizer_sha256": manifest.tokenizer_sha256,
        "skipped": manifest.skipped,
        **{
            split: {
                "tokens": sum(shard.tokens for shard in shards),
                "documents": sum(shard.documents for shard in shards),
                "text_bytes": sum(shard.text_bytes for shard in shards),
                "shards": len(shards),
            }
            for split, shards in splits.items()
        },
    }


def show_counts(folder: Path, manifest: "Manifest") -> None:
    """The counts for people."""
    facts = summary(folder, manifest)
    print(f"{folder}: {facts['source']}, vocabulary {manifest.vocab_size:,}")
    for split, shards in (("train", manifest.train), ("held_out", manifest.held_out)):
        tokens = sum(shard.tokens for shard in shards)
        documents = sum(shard.documents for shard in shards)
        text_bytes = sum(shard.text_bytes for shard in shards)
        ratio = f", {text_bytes / tokens:.2f} bytes per token" if tokens else ""
        print(f"  {split:8} {tokens:>14,} tokens in {documents:,} documents{ratio}")
    for reason, count in manifest.skipped.items():
        if count:
            print(f"  left out: {count:,} {reason.replace('_', ' ')}")


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    if not first.isdecimal() or not (last or first).isdecimal() or int(last or first) < int(first):
        raise ValueError(f"--shards '{text}': give a number or a range such as 0-9")
    return range(int(first), int(last or first) + 1)


@contextmanager
def _says_how_to_resume() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here", end="", file=sys.stderr)
        raise


def _progress() -> "Progress":
    """A line on the terminal that is written over, or one line per step of work in a log."""
    terminal = sys.stderr.isatty()
    last = ""

    def show(what: str, done: int, total: int) -> None:
        nonlocal last
        if terminal:
            end = "\n" if done == total else ""
            print(f"\r\033[K{what} {done}/{total}", end=end, file=sys.stderr, flush=True)
        elif what != last:
            print(what, file=sys.stderr, flush=True)
        last = what

    return show
