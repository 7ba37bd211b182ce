"""`mixerloop evaluate`: what a trained model can do."""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from mixerloop import machine, runs
from mixerloop.config import RunConfig
from mixerloop.notation import notation, resolve

if TYPE_CHECKING:
    from mixerloop.evaluation.hops_accuracy import HopsAccuracy

HELP = """Measure a trained model; hops is accuracy by the number of hops, beside a guess.

examples:
  mixerloop evaluate hops runs/nano-hops-mixer_loop
  mixerloop evaluate hops runs/nano-hops-mixer_loop --schedule "mixer_loop(2)" --json
"""


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """The options of `mixerloop evaluate`."""

    what: tyro.conf.Positional[Literal["hops"]]
    """What to measure."""
    run_path: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(name="run", metavar="RUN")]
    """A run, or one of its checkpoints."""
    data: Path | None = None
    """A folder of hops; the one the run was trained on unless you say so."""
    sequences: int = 4096
    """Held-out sequences to read, 4,096 at most."""
    schedule: str | None = None
    """Run under another schedule than the one the weights were trained with."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Measure and print."""
        from mixerloop.data.batches import fingerprint, hops_settings
        from mixerloop.data.hops import Hops
        from mixerloop.evaluation.hops_accuracy import hops_accuracy
        from mixerloop.model.checkpoint import load_model

        if self.sequences < 1:
            raise ValueError(f"--sequences must be at least 1, got {self.sequences}")
        machine.keep_freed_memory()
        folder = runs.find_checkpoint(self.run_path)
        model, config = load_model(folder)
        chosen = config.model.schedule if self.schedule is None else self.schedule
        schedule = resolve(chosen, config.model.num_layers)
        data = _data_of(config) if self.data is None else self.data
        settings = hops_settings(data)
        if settings is None:
            raise ValueError(f"{data}: not a folder of hops; give one with --data")
        hops = Hops(settings, "held_out")
        if hops.vocab_size > config.model.vocab_size:
            raise ValueError(f"{data}: {hops.vocab_size} token ids do not fit the model")
        logits_at = partial(model, schedule=schedule)
        found = hops_accuracy(logits_at, hops, num_sequences=self.sequences)
        result = {
            "checkpoint": str(folder),
            "schedule": notation(schedule),
            "trained_schedule": notation(model.schedule),
            "accuracy_by_hop": [
                asdict(one) | {"accuracy": one.accuracy._asdict()} for one in found
            ],
            "provenance": runs.provenance(
                data=fingerprint(data), implementation=model.implementation, compute_dtype="float32"
            ),
        }
        if self.json:
            print(runs.to_json(result), end="")
        else:
            show(str(self.run_path), notation(schedule), found)


def _data_of(config: RunConfig) -> Path:
    if config.data is None:
        raise ValueError("this run was not trained; name the data with --data")
    return Path(config.data.path)


def show(run: str, schedule: str, found: "list[HopsAccuracy]") -> None:
    """The accuracies for people."""
    print(f"{run}, schedule {schedule}")
    print("hops  right  95 % interval  guess  questions")
    for one in found:
        value, lower, upper = one.accuracy
        print(
            f"{one.hops:4}  {value:.3f}  {lower:.3f} to {upper:.3f}  {one.guess:.3f}  "
            f"{one.questions:,}"
        )
