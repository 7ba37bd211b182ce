"""Prepared data and trained runs that many tests read: made once a session, for all its processes.

Read them only. A test that changes a run copies it: `shutil.copytree(hops_run, tmp_path / "run")`.
"""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from made_once import made_once
from mixerloop.config import run_config
from mixerloop.data.corpora import prepare_hops, prepare_text
from mixerloop.training.sessions import train
from small_model import training_file


def tales(number: int) -> Iterator[str]:
    """Short documents of a few words, each with numbers of its own."""
    for n in range(number):
        yield f"tale {n} of a fox and {n} hens. " * 9


def trained(data: Path, run: Path, **keys) -> None:
    """Train a small model for four steps; `keys` are those of `training_file`."""
    text = training_file(str(data), schedule="mixer_loop(2)", **keys)
    train(run_config(tomllib.loads(text)), run)


@pytest.fixture(scope="session")
def hops_data(tmp_path_factory) -> Path:
    """The hops task, prepared."""
    return made_once(tmp_path_factory, "hops", lambda place: prepare_hops(place / "data")) / "data"


@pytest.fixture(scope="session")
def text_data(tmp_path_factory) -> Path:
    """Sixty tales, a third of them held out, with a vocabulary of 300."""

    def make(place: Path) -> None:
        lines = (json.dumps({"text": tale}) for tale in tales(60))
        (place / "tales.jsonl").write_text("\n".join(lines))
        prepare_text(
            [place / "tales.jsonl"],
            place / "data",
            vocab_size=300,
            held_out_share=0.3,
            workers=1,
        )

    return made_once(tmp_path_factory, "text", make) / "data"


@pytest.fixture(scope="session")
def hops_run(tmp_path_factory, hops_data) -> Path:
    """A small model, trained for four steps on hops under the mixer loop of two passes."""
    made = made_once(tmp_path_factory, "hops-run", lambda place: trained(hops_data, place / "run"))
    return made / "run"


@pytest.fixture(scope="session")
def text_run(tmp_path_factory, text_data) -> Path:
    """The same model, trained on tales with a context of 16 tokens."""

    def make(place: Path) -> None:
        trained(text_data, place / "run", context=16, vocab_size=300)

    return made_once(tmp_path_factory, "text-run", make) / "run"
