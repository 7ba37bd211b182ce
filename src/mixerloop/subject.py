"""A subject: a model ready to be measured, and the folder of its results."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mixerloop import runs
from mixerloop.config import ComputeDtype, RunConfig, check_fits
from mixerloop.data.prepared import Prepared, open_prepared
from mixerloop.data.tokenizer import Tokenizer
from mixerloop.data.tokenizer_files import tokenizer_in
from mixerloop.data.vocabulary import check_vocabulary, vocabulary_in
from mixerloop.measures import measure_of
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.notation import notation
from mixerloop.result_files import NO_FILES, check_can_write, write_result
from mixerloop.results import Heading, Provenance, Result, result_provenance
from mixerloop.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model with the schedule and the precision of its measurements.

    `mixerloop.open_subject(RUN)` opens a run as a subject.
    """

    folder: Path
    """The folder of the checkpoint, or an exported folder."""
    fingerprint: str
    """The fingerprint of the weights."""
    results: Path | None
    """The folder where results are saved; None to save no results."""
    model: LoopedLM
    config: RunConfig
    schedule: Schedule
    compute_dtype: ComputeDtype
    damping: float | None = None
    """Share of its change that each pass but the first keeps; None if passes keep all of it."""
    overwrite: bool = False
    """Whether results also replace files that this program did not write."""

    @property
    def device(self) -> torch.device:
        """The device that holds the weights; inputs must be moved to it."""
        return self.model.embedding.weight.device

    def tokenizer(self) -> Tokenizer:
        """Load the tokenizer beside the weights; its vocabulary must fit the model."""
        return fitting_tokenizer(self.folder, vocab_size=self.config.model.vocab_size)

    def open_data(self, given: Path | str | None) -> Prepared:
        """Open the data folder `given`, or else the folder that the run was trained on.

        Rejects data of another vocabulary than the model's. Every measure opens its data here.
        """
        if given is None:
            if self.config.data is None:
                raise ValueError("this run was not trained; name its data folder: data")
            given = self.config.data.path
        data = open_prepared(given)
        check_vocabulary(
            data.folder,
            data.vocabulary,
            self.folder,
            vocabulary_in(self.folder),
            vocab_size=self.config.model.vocab_size,
        )
        return data

    def forms(self) -> dict[str, str]:
        """The form (implementation) of each operator of the model."""
        return forms_of(self.model)

    def heading(self) -> Heading:
        """The fields that every result of this subject starts with."""
        return Heading(
            checkpoint=str(self.folder),
            schedule=notation(self.schedule),
            trained_schedule=notation(self.config.model.occurrences()),
        )

    def provenance(self, **facts: Any) -> Provenance:
        """The provenance of a result of this subject; `facts` are additional fields."""
        train = self.config.train
        return result_provenance(
            checkpoint_sha256=self.fingerprint,
            forms=self.forms(),
            compute_dtype=self.compute_dtype,
            device=self.device.type,
            seed=None if train is None else train.seed,
            damping=self.damping,
            **facts,
        )

    def check_can_save(self, kind: type[Result]) -> None:
        """Raise, before any work, if a result of a type would replace a file of the user."""
        if self.results is not None:
            check_can_write(self.results, measure_of(kind), overwrite=self.overwrite)

    def save(
        self,
        result: Result,
        *,
        details: str | None = None,
        detail_files: Mapping[str, str] = NO_FILES,
    ) -> Path | None:
        """Write a result and its details to the results folder, if there is one.

        The arguments are those of `mixerloop.result_files.write_result`. Returns the path of the
        result file; None for a subject that saves no results.
        """
        if self.results is None:
            return None
        return write_result(
            self.results,
            result,
            details=details,
            detail_files=detail_files,
            overwrite=self.overwrite,
        )


def fitting_tokenizer(folder: Path, *, vocab_size: int) -> Tokenizer:
    """The tokenizer of a checkpoint or an exported folder; it must fit a model's vocabulary."""
    tokenizer = tokenizer_in(folder)
    if tokenizer is None:
        raise ValueError(f"{folder}: has no tokenizer, so it cannot read text")
    check_fits(runs.tokenizer_file(folder), tokenizer.vocab_size, vocab_size)
    return tokenizer


def forms_of(model: LoopedLM) -> dict[str, str]:
    """The form of each operator of a model, for the provenance."""
    return model.forms()
