"""`mixerloop generate`: continue a prompt, and print text while it is generated."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from mixerloop.config import ComputeDtype, FormChoice
from mixerloop.files import json_text
from mixerloop.parsing import one_of
from mixerloop.progress_line import to_stderr
from mixerloop.start import Output

if TYPE_CHECKING:
    from mixerloop.text_generation import Generated

HELP = """Continue a prompt, token by token, at a constant cost per token.

examples:
  mixerloop generate RUN --prompt "Once upon a time" --max-tokens 200
  mixerloop generate RUN --prompt "def main" --temperature 0.7 --top-k 50 --top-p 0.95 --seed 1
  mixerloop generate RUN --prompt-tokens 1 5 9 --schedule "6x(A2 F)" --json
"""


@dataclass(frozen=True, kw_only=True)
class Generate:
    """The options of `mixerloop generate`."""

    run_path: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(name="run", metavar="RUN")]
    """A run, or one of its checkpoints."""
    prompt: str | None = None
    """The text to continue."""
    prompt_tokens: list[int] = field(default_factory=list)
    """The prompt as token ids, for runs without a tokenizer."""
    max_tokens: int = 100
    """Stop after this many new tokens."""
    temperature: float = 1.0
    """Divides the logits; 0 always takes the most likely token."""
    top_k: int | None = None
    """Draw from this many of the most likely tokens."""
    top_p: float | None = None
    """Draw from the fewest tokens that hold this much probability."""
    seed: int = 0
    """Seed of the draws."""
    stop: Annotated[list[str], tyro.conf.UseAppendAction] = field(default_factory=list)
    """Stop before this text; may be repeated."""
    schedule: str | None = None
    """Run under another schedule than that of the weights."""
    damping: float | None = None
    """Keep this share of what each pass but the first changes; for loops without training."""
    compute_dtype: str = "float32"
    """The type of the projections: float32 or bfloat16."""
    form: str = "auto"
    """The form of the operators: auto, native, torch, definition or fla."""
    json: bool = False
    """Print one JSON object at the end instead of text while it is generated."""

    def run(self) -> None:
        """Continue the prompt, and print the text and its speed, or JSON."""
        if (self.prompt is None) == (not self.prompt_tokens):
            raise ValueError("give either --prompt or --prompt-tokens")
        from mixerloop.interop.loading import open_subject
        from mixerloop.model.generation import Sampling
        from mixerloop.text_generation import generate

        sampling = Sampling(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
        subject = open_subject(
            self.run_path,
            schedule=self.schedule,
            damping=self.damping,
            compute_dtype=one_of(ComputeDtype, self.compute_dtype, "compute type"),
            form=one_of(FormChoice, self.form, "form"),
            device="cpu",
            keep=False,
        )
        generated = generate(
            subject,
            self.prompt_tokens if self.prompt is None else self.prompt,
            max_tokens=self.max_tokens,
            sampling=sampling,
            seed=self.seed,
            stop=self.stop,
            show=None if self.json else _show,
        )
        if self.json:
            print(json_text(generated.to_json()), end="")
        else:
            _report(generated)


def _show(text: str) -> None:
    """Print generated text: unchanged into a file, without escape sequences on a terminal."""
    if isinstance(sys.stdout, Output) and not sys.stdout.isatty():
        sys.stdout.write_exactly(text)
    else:
        sys.stdout.write(text)
    sys.stdout.flush()


def _report(generated: "Generated") -> None:
    rate = generated.tokens_per_second
    speed = f", {rate:,.1f} tokens/s" if rate else ""
    _show("\n")
    to_stderr(
        f"{len(generated.tokens)} tokens{speed} after a prompt of {generated.prompt_tokens} in "
        f"{generated.prefill_seconds:.2f} s; schedule {generated.schedule}\n"
    )
