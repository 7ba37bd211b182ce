"""A subject: a model ready to be measured, and where its results go."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mixerloop import runs
from mixerloop.config import ComputeDtype, RunConfig, check_fits
from mixerloop.data.tokenizer import Tokenizer
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.notation import notation
from mixerloop.result_files import write_result
from mixerloop.results import Heading, Provenance, Result, result_provenance
from mixerloop.schedule import Schedule


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

    def forms(self) -> dict[str, str]:
        """The form of each operator that runs."""
        return forms_of(self.model)

    def heading(self) -> Heading:
        """The first fields of a result."""
        return Heading(
            checkpoint=str(self.folder),
            schedule=notation(self.schedule),
            trained_schedule=notation(self.model.schedule),
        )

    def provenance(self, **facts: Any) -> Provenance:
        """The provenance of a result of this subject; `facts` are further fields of it."""
        train = self.config.train
        return result_provenance(
            checkpoint_sha256=self.fingerprint,
            forms=self.forms(),
            compute_dtype=self.compute_dtype,
            device=self.device.type,
            seed=None if train is None else train.seed,
            **facts,
        )

    def save(self, result: Result, *, details: str | None = None) -> Path | None:
        """Write a result, and the details of its measure, to the results folder, if there is one.

        Returns the result file; None for a subject that keeps no results.
        """
        if self.results is None:
            return None
        return write_result(self.results, result, details=details)


def forms_of(model: LoopedLM) -> dict[str, str]:
    """The form of each operator of a model, for the provenance."""
    return {operator: str(form) for operator, form in model.forms().items()}
