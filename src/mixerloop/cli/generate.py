"""`mixerloop generate`: text from a run, as it is drawn."""

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from mixerloop import runs
from mixerloop.config import ComputeDtype, FormChoice
from mixerloop.notation import notation, resolve
from mixerloop.parsing import one_of

if TYPE_CHECKING:
    from mixerloop.data.tokenizer import Tokenizer


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
    """Run under another schedule than the one the weights were made for."""
    compute_dtype: str = "float32"
    """float32 or bfloat16."""
    form: str = "auto"
    """The form of the gated delta rule: auto, native, torch or definition."""
    json: bool = False
    """Print one JSON object at the end instead of text as it comes."""

    def run(self) -> None:
        """Load, continue, and say how fast it went."""
        if (self.prompt is None) == (not self.prompt_tokens):
            raise ValueError("give either --prompt or --prompt-tokens")

        import torch

        from mixerloop.data.tokenizer import Tokenizer
        from mixerloop.interop.loading import load_any
        from mixerloop.model.generation import Sampling, generate

        if self.max_tokens < 1:
            raise ValueError(f"--max-tokens must be at least 1, got {self.max_tokens}")
        if "" in self.stop:
            raise ValueError("--stop needs some text to stop at")
        sampling = Sampling(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
        form = one_of(FormChoice, self.form, "form")
        compute_dtype = one_of(ComputeDtype, self.compute_dtype, "compute type")
        loaded = load_any(self.run_path, form=form)
        folder, model, config = loaded.folder, loaded.model, loaded.config
        own_schedule = config.model.schedule
        chosen = own_schedule if self.schedule is None else self.schedule
        schedule = resolve(chosen, config.model.num_layers)
        tokenizer_path = folder / runs.TOKENIZER
        tokenizer = Tokenizer(tokenizer_path) if tokenizer_path.exists() else None
        prompt = self._prompt_ids(tokenizer, config.model.vocab_size)

        printer = _Printer(tokenizer, prompt, self.stop, echo=not self.json)
        began = time.perf_counter()
        times, ids = [began], []
        for token in generate(
            model,
            torch.tensor([prompt]),
            max_tokens=self.max_tokens,
            sampling=sampling,
            seed=self.seed,
            schedule=schedule,
            compute_dtype=compute_dtype,
            num_ids=None if tokenizer is None else tokenizer.vocab_size,
        ):
            times.append(time.perf_counter())
            ids.append(int(token))
            if tokenizer is not None and ids[-1] in (tokenizer.bos_id, tokenizer.eos_id):
                break  # the document ends, or the next one begins
            if printer.stops_at(ids[-1]):
                break
        printer.finish()
        decode_seconds = times[-1] - times[1]
        result = {
            "text": printer.text if tokenizer is not None else None,
            "tokens": ids,
            "prompt_tokens": len(prompt),
            "prefill_seconds": times[1] - began,
            "tokens_per_second": (len(ids) - 1) / decode_seconds if len(ids) > 1 else None,
            "schedule": notation(schedule),
            "run_schedule": own_schedule,
            "compute_dtype": self.compute_dtype,
            "form": model.form,
            "seed": self.seed,
        }
        if self.json:
            print(json.dumps(result, indent=2))
        else:
            _report(result)

    def _prompt_ids(self, tokenizer: "Tokenizer | None", vocab_size: int) -> list[int]:
        if self.prompt is None:
            if self.stop and tokenizer is None:
                raise ValueError("--stop needs a run with a tokenizer")
            for token in self.prompt_tokens:
                if not 0 <= token < vocab_size:
                    raise ValueError(
                        f"token id {token} is outside the vocabulary of {vocab_size:,}"
                    )
            return self.prompt_tokens
        if tokenizer is None:
            raise ValueError(f"{self.run_path}: has no tokenizer; give --prompt-tokens")
        if not (ids := tokenizer.encode(self.prompt)):
            raise ValueError("the prompt is empty, and this tokenizer has no start token")
        return ids


class _Printer:
    """Shows text as it comes and watches for a stop text; shows ids where there is no tokenizer."""

    def __init__(
        self, tokenizer: "Tokenizer | None", prompt: list[int], stops: list[str], *, echo: bool
    ) -> None:
        from mixerloop.data.tokenizer import TextStream

        self.text = ""
        self._shown = 0
        self._stops = stops
        self._echo = echo
        self._stream = None if tokenizer is None else TextStream(tokenizer, prompt)

    def stops_at(self, token: int) -> bool:
        """Take one token; true when a stop text is complete."""
        if self._stream is None:
            self.text += f"{token} "
        else:
            self.text += self._stream.push(token)
        found = [at for stop in self._stops if (at := self.text.find(stop)) >= 0]
        if found:
            self.text = self.text[: min(found)]
            self._stream = None
        self._show(len(self.text) if found else len(self.text) - self._held())
        return bool(found)

    def finish(self) -> None:
        """Show what was held back."""
        if self._stream is not None:
            self.text += self._stream.pending()
        self._show(len(self.text))

    def _held(self) -> int:
        """How much of the end of the text may be the beginning of a stop text."""
        lengths = [
            length
            for stop in self._stops
            for length in range(1, len(stop))
            if self.text.endswith(stop[:length])
        ]
        return max(lengths, default=0)

    def _show(self, until: int) -> None:
        if self._echo and until > self._shown:
            sys.stdout.write(self.text[self._shown : until])
            sys.stdout.flush()
        self._shown = max(self._shown, until)


def _report(result: dict[str, Any]) -> None:
    rate = result["tokens_per_second"]
    speed = f", {rate:,.1f} tokens/s" if rate else ""
    sys.stdout.write("\n")
    sys.stdout.flush()
    print(
        f"{len(result['tokens'])} tokens{speed} after a prompt of {result['prompt_tokens']} in "
        f"{result['prefill_seconds']:.2f} s; schedule {result['schedule']}",
        file=sys.stderr,
    )
