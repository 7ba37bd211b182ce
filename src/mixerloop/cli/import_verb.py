"""`mixerloop import`: a pretrained or exported folder, or a GGUF file, as a run."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from mixerloop.files import json_text
from mixerloop.progress_line import to_stderr

HELP = """Make a run from a pretrained folder of `transformers`, a GGUF file, or our own export.

The known model types are llama, mistral, qwen2, qwen3, olmo2, nanbeige, ouro and huginn_raven; the
released gated_deltanet (of flash-linear-attention), mixerloop, fullloop and ffnloop; and
mixerloop_schedule (of our exports).

examples:
  mixerloop import SmolLM2-135M --out runs/smollm2
  mixerloop import SmolLM2-135M-Instruct.Q4_1.gguf --out runs/smollm2-instruct
  mixerloop import SmolLM2-135M --layers 0 1 2 27 28 29 --out runs/six-layers
  mixerloop import mixerloop-15m --out runs/released-15m
  mixerloop import other-15m --schedule "mixer_loop(4)" --ignore-keys their_key --out runs/other
"""


@dataclass(frozen=True, kw_only=True)
class Import:
    """The options of `mixerloop import`."""

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="MODEL")]
    """A folder with config.json and safetensors, or a .gguf file."""
    out: Path
    """The run to make."""
    schedule: str | None = None
    """Use this schedule instead of the loop that the folder names."""
    layers: tuple[int, ...] | None = None
    """Take these layers only, counted from 0, such as 0 1 2 27 28 29."""
    tokenizer: Path | None = None
    """A tokenizer (.model, .json) or a folder with one; by default the tokenizer of MODEL."""
    ignore_keys: tuple[str, ...] = ()
    """Keys of config.json that you know to have no effect on the model."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Make the run and print its schedule, or JSON."""
        from mixerloop.interop.conversion import import_run
        from mixerloop.interop.pretrained import listed

        made = import_run(
            self.folder,
            self.out,
            schedule=self.schedule,
            layers=self.layers,
            tokenizer=self.tokenizer,
            ignore_keys=self.ignore_keys,
        )
        if made.not_finite:
            counts = [f"{number:,} of {name}" for name, number in made.not_finite.items()]
            to_stderr(f"warning: values that are NaN or infinite: {listed(counts)}\n")
        if self.json:
            print(json_text({**asdict(made), "run": str(made.run)}), end="")
        else:
            print(f"{made.run}: {made.parameters:,} parameters, schedule {made.schedule}")
            if made.unused:
                print(f"not used, kept for an export: {', '.join(made.unused)}")
