"""A subject: a model ready to be measured, and where its results go."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mixerloop import runs
from mixerloop.config import ComputeDtype, RunConfig, check_fits
from mixerloop.data.tokenizer import Tokenizer
from mixerloop.files import json_text, write_file
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.notation import notation
from mixerloop.provenance import collect_provenance
from mixerloop.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class Heading:
    """Which model a result is of."""

    checkpoint: str
    schedule: str
    trained_schedule: str


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model with the schedule and the precision it is measured in.

    `mixerloop.open_subject(RUN)` makes a subject of a run.
    """

    folder: Path
    """The checkpoint, or an exported folder."""
    fingerprint: str
    """Of the weights."""
    results: Path | None
    """Where results are kept; None keeps none."""
    model: LoopedLM
    config: RunConfig
    schedule: Schedule
    compute_dtype: ComputeDtype

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.model.embedding.weight.device

    def tokenizer(self) -> Tokenizer:
        """The tokenizer beside the weights, which must fit the model."""
        path = self.folder / runs.TOKENIZER
        if not path.is_file():
            raise ValueError(f"{self.folder}: has no tokenizer, so it cannot read text")
        tokenizer = Tokenizer(path)
        check_fits(path, tokenizer.vocab_size, self.config.model.vocab_size)
        return tokenizer

    def data(self, given: Path | str | None) -> Path:
        """The folder that is given, or the folder the run was trained on."""
        if given is not None:
            return Path(given)
        if self.config.data is None:
            raise ValueError("this run was not trained; name its data folder: data")
        return Path(self.config.data.path)

    def facts(self) -> dict[str, Any]:
        """Everything about the subject that a figure depends on."""
        return {
            "checkpoint": self.fingerprint,
            "schedule": notation(self.schedule),
            "compute_dtype": self.compute_dtype,
            "forms": self.model.forms(),
            "device": self.device.type,
        }

    def heading(self) -> Heading:
        """The first lines of a result."""
        return Heading(
            checkpoint=str(self.folder),
            schedule=notation(self.schedule),
            trained_schedule=notation(self.model.schedule),
        )

    def provenance(self, **more: Any) -> dict[str, Any]:
        """The provenance of a result of this subject."""
        facts = self.facts()
        train = self.config.train
        return collect_provenance(
            checkpoint_sha256=facts["checkpoint"],
            forms=facts["forms"],
            compute_dtype=facts["compute_dtype"],
            device=facts["device"],
            seed=None if train is None else train.seed,
            **more,
        )

    def keep(self, name: str, result: dict[str, Any]) -> None:
        """Write a result to the results folder, if the subject has a results folder."""
        if self.results is not None:
            self.results.mkdir(parents=True, exist_ok=True)
            write_file(self.results / name, json_text(result))
