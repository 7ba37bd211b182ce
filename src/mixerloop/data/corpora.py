"""Preparing data: one function for each source, from files to a folder that training reads.

Every function resumes a preparation that was stopped, and rejects a folder that holds other data.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from mixerloop.data.prepare import Progress, check_free, prepare
from mixerloop.data.shards import Manifest
from mixerloop.data.sources import Source, climbmix, standard_library, text_files
from mixerloop.data.splitting import VOCAB_SIZE, Settings, text_settings
from mixerloop.data.task_folder import prepare_task
from mixerloop.data.tasks.hops import HopsSettings
from mixerloop.data.tokenizer import Tokenizer
from mixerloop.data.tokenizer_files import open_tokenizer
from mixerloop.parsing import checked

STDLIB_HELD_OUT_SHARE = 0.05
CLIMBMIX_SHARDS = range(170)
"""The shards of the paper's training set."""
WORKERS = os.cpu_count() or 1
MOST_WORKERS = 1024


@checked
def prepare_text(
    paths: Sequence[Path | str],
    out: Path | str,
    *,
    held_out: Sequence[Path | str] = (),
    held_out_share: float | None = None,
    tokenizer: Path | str | None = None,
    vocab_size: int | None = None,
    workers: int = WORKERS,
    progress: Progress | None = None,
) -> Manifest:
    """Prepare text files, or folders of them.

    `held_out` names files that are held out whole, and are not in training. Without such files a
    share of the text is held out: 1 % of many documents, by their hash; of fewer than 1,000
    documents up to a tenth, in blocks. `tokenizer` is a file, or a folder with a tokenizer; without
    it, a tokenizer of `vocab_size` pieces is trained, by default up to 4,096, by the size of the
    text.
    """
    if not paths:
        raise ValueError("name the files or folders to prepare")
    if held_out and held_out_share is not None:
        raise ValueError("give held_out or held_out_share, not both")
    given = _checked(out, tokenizer, vocab_size, workers, held_out_share)
    source = text_files([Path(path) for path in paths], [Path(path) for path in held_out])
    settings = text_settings(
        source,
        held_out_share=held_out_share,
        vocab_size=vocab_size,
        trains_tokenizer=given is None,
    )
    return _prepare(source, out, settings, given, workers, progress)


@checked
def prepare_stdlib(
    out: Path | str,
    *,
    held_out_share: float = STDLIB_HELD_OUT_SHARE,
    tokenizer: Path | str | None = None,
    vocab_size: int | None = None,
    workers: int = WORKERS,
    progress: Progress | None = None,
) -> Manifest:
    """Prepare the source of this Python's standard library."""
    given = _checked(out, tokenizer, vocab_size, workers, held_out_share)
    settings = _settings(given, vocab_size, held_out_share)
    return _prepare(standard_library(), out, settings, given, workers, progress)


@checked
def prepare_climbmix(
    out: Path | str,
    *,
    shards: range = CLIMBMIX_SHARDS,
    source: Path | str | None = None,
    tokenizer: Path | str | None = None,
    vocab_size: int | None = None,
    workers: int = WORKERS,
    progress: Progress | None = None,
) -> Manifest:
    """Prepare the paper's corpus, from a folder of its parquet files or from the hub."""
    given = _checked(out, tokenizer, vocab_size, workers, None)
    if tokenizer is None and vocab_size is None:
        raise ValueError(
            "climbmix needs a tokenizer, for the paper's figures the 32,000 "
            "pieces of Llama 2; or a vocab_size to train one, which gives other figures"
        )
    corpus = climbmix(shards, None if source is None else Path(source))
    return _prepare(corpus, out, _settings(given, vocab_size, None), given, workers, progress)


@checked
def prepare_hops(out: Path | str, settings: HopsSettings | None = None) -> HopsSettings:
    """Write the settings of the synthetic task hops; its sequences are drawn as they are read."""
    settings = HopsSettings() if settings is None else settings
    prepare_task(out, settings)
    return settings


def _checked(
    out: Path | str,
    tokenizer: Path | str | None,
    vocab_size: int | None,
    workers: int,
    held_out_share: float | None,
) -> Tokenizer | None:
    """The given tokenizer, once the options are checked: before any source is read."""
    if not 1 <= workers <= MOST_WORKERS:
        raise ValueError(f"workers must be from 1 to {MOST_WORKERS}, got {workers}")
    check_free(Path(out))
    Settings(held_out_share=held_out_share, vocab_size=vocab_size)  # raises outside their range
    if held_out_share == 0:
        raise ValueError("held_out_share must be above 0: training and measurements read that text")
    if tokenizer is None:
        return None
    if vocab_size is not None:
        raise ValueError("a tokenizer has its own size; leave vocab_size out")
    return open_tokenizer(tokenizer)


def _settings(
    given: Tokenizer | None, vocab_size: int | None, held_out_share: float | None
) -> Settings:
    if given is None and vocab_size is None:
        vocab_size = VOCAB_SIZE
    return Settings(held_out_share=held_out_share, vocab_size=vocab_size)


def _prepare(
    source: Source,
    out: Path | str,
    settings: Settings,
    given: Tokenizer | None,
    workers: int,
    progress: Progress | None,
) -> Manifest:
    return prepare(
        source,
        Path(out),
        settings=settings,
        given=given,
        workers=workers,
        progress=_silent if progress is None else progress,
    )


def _silent(what: str, done: int, total: int) -> None:
    pass
