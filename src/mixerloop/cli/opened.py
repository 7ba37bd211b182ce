"""A run as the verbs that measure it open it: model, schedule, tokenizer, and where results go."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from mixerloop import machine, runs
from mixerloop.config import ComputeDtype, Device, ImplementationChoice, RunConfig, check_fits
from mixerloop.notation import notation, resolve
from mixerloop.schedule import Schedule

if TYPE_CHECKING:
    import torch

    from mixerloop.data.tokenizer import Tokenizer
    from mixerloop.evaluation.looped_scorer import LoopedScorer
    from mixerloop.model.looped_lm import LoopedLM


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """The options of every verb that measures a model."""

    schedule: str | None = None
    """Run under another schedule than the one the weights were trained with."""
    compute_dtype: ComputeDtype = "float32"
    """The type of the projections."""
    implementation: ImplementationChoice = "auto"
    """The form of the operators."""
    device: Device = "auto"
    """Where to run."""
    out: Path | None = None
    """Keep the results here instead of in RUN/results, which has those of its own schedule only."""
    json: bool = False
    """Print JSON for programs, and no progress."""

    def open_run(self, run: Path) -> "Opened":
        """Load the model of a run, or of one of its checkpoints."""
        from mixerloop.interop.loading import load_any
        from mixerloop.model.device import find_device
        from mixerloop.ops.gated_delta_rule import choose_implementation

        machine.keep_freed_memory()
        if self.out is not None:
            runs.check_can_hold(self.out)
        device = find_device(self.device, option="--device")
        chosen = choose_implementation(self.implementation, device.type)
        loaded = load_any(run, implementation=chosen)
        results = self.out
        if results is None and self.schedule is None and loaded.is_run:
            results = runs.results_folder(run)
            runs.check_can_hold(results)
        config = loaded.config
        text = config.model.schedule if self.schedule is None else self.schedule
        return Opened(
            folder=loaded.folder,
            fingerprint=loaded.fingerprint,
            results=results,
            model=loaded.model.to(device).eval(),
            config=config,
            schedule=resolve(text, config.model.num_layers),
            compute_dtype=self.compute_dtype,
        )


@dataclass(frozen=True, kw_only=True)
class Opening(Measuring):
    """The options of every verb that measures a run."""

    run_path: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(name="run", metavar="RUN")]
    """A run, or one of its checkpoints."""

    def open(self) -> "Opened":
        """Load the model."""
        return self.open_run(self.run_path)


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A run that can be measured."""

    folder: Path
    """The checkpoint, or a folder of transformers."""
    fingerprint: str
    """Of its weights."""
    results: Path | None
    """Where results are kept, if they are."""
    model: "LoopedLM"
    config: RunConfig
    schedule: Schedule
    compute_dtype: ComputeDtype

    @property
    def device(self) -> "torch.device":
        """Where the model is."""
        return self.model.embedding.weight.device

    def scorer(
        self, *, schedule: Schedule | None = None, share_prefixes: bool = True
    ) -> "LoopedScorer":
        """The model as evaluation sees it."""
        from mixerloop.evaluation.looped_scorer import LoopedScorer

        return LoopedScorer(
            self.model,
            schedule=self.schedule if schedule is None else schedule,
            compute_dtype=self.compute_dtype,
            share_prefixes=share_prefixes,
        )

    def tokenizer(self) -> "Tokenizer":
        """The run's own tokenizer, which must fit its model."""
        from mixerloop.data.tokenizer import Tokenizer

        path = self.folder / runs.TOKENIZER
        if not path.is_file():
            raise ValueError(f"{self.folder}: has no tokenizer, so it cannot read text")
        tokenizer = Tokenizer(path)
        check_fits(path, tokenizer.vocab_size, self.config.model.vocab_size)
        return tokenizer

    def data(self, given: Path | None) -> Path:
        """The data that was given, or the run's own."""
        if given is not None:
            return given
        if self.config.data is None:
            raise ValueError("this run was not trained; name the data with --data")
        return Path(self.config.data.path)

    def facts(self) -> dict[str, Any]:
        """What every figure of this model depends on."""
        return {
            "checkpoint": self.fingerprint,
            "schedule": notation(self.schedule),
            "compute_dtype": self.compute_dtype,
            "implementation": self.model.implementation,
            "device": self.device.type,
        }

    def heading(self) -> dict[str, Any]:
        """How a result begins."""
        return {
            "checkpoint": str(self.folder),
            "schedule": notation(self.schedule),
            "trained_schedule": notation(self.model.schedule),
        }

    def provenance(self, **more: Any) -> dict[str, Any]:
        """How a result ends."""
        facts = self.facts()
        train = self.config.train
        return runs.provenance(
            checkpoint_sha256=facts["checkpoint"],
            implementation=facts["implementation"],
            compute_dtype=facts["compute_dtype"],
            device=facts["device"],
            seed=None if train is None else train.seed,
            **more,
        )

    def keep(self, name: str, result: dict[str, Any]) -> None:
        """Write a result where results are kept."""
        if self.results is not None:
            self.results.mkdir(parents=True, exist_ok=True)
            runs.write_file(self.results / name, runs.to_json(result))

    def where_kept(self, name: str) -> str:
        """In words."""
        if self.results is None:
            return "not kept: not a run, or not under its own schedule; --out keeps it"
        return f"kept in {self.results / name}"
