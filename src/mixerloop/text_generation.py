"""`generate`: text from a subject, token by token, until a limit, a stop text or an end token."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from mixerloop.config import ComputeDtype, Form
from mixerloop.data.tokenizer import TextStream, Tokenizer
from mixerloop.data.tokenizer_files import tokenizer_in
from mixerloop.model.generation import Sampling, check_max_tokens
from mixerloop.model.generation import generate as generate_tokens
from mixerloop.notation import notation
from mixerloop.ops.caller_modes import torch_defaults
from mixerloop.parsing import checked
from mixerloop.subject import Subject

Show = Callable[[str], None]
"""Called with new text while it is generated, without a line break at its end."""


@dataclass(frozen=True, kw_only=True)
class Generated:
    """A continuation of a prompt, and its speed."""

    text: str | None
    """Up to the stop text; None for a model without a tokenizer."""
    tokens: list[int]
    prompt_tokens: int
    prefill_seconds: float
    tokens_per_second: float | None
    """The speed after the first token; None if there is only one token."""
    schedule: str
    run_schedule: str
    """The schedule that the weights were trained with, or drawn for."""
    compute_dtype: ComputeDtype
    form: Form
    seed: int

    def to_json(self) -> dict[str, Any]:
        """The JSON that `mixerloop generate --json` prints."""
        return asdict(self)


@checked
@torch_defaults()
def generate(
    subject: Subject,
    prompt: str | Sequence[int],
    *,
    max_tokens: int = 100,
    sampling: Sampling | None = None,
    seed: int = 0,
    stop: Sequence[str] = (),
    show: Show | None = None,
) -> Generated:
    """Continue a prompt, given as text or as token ids.

    The text ends before any of the texts of `stop`. `show` is called with text while it is
    generated, or with token ids if the subject has no tokenizer.
    """
    check_max_tokens(max_tokens)
    if "" in stop:
        raise ValueError("stop needs some text to stop at")
    tokenizer = tokenizer_in(subject.folder)
    ids = _prompt_ids(subject, prompt, tokenizer)
    if stop and tokenizer is None:
        raise ValueError("stop needs a run with a tokenizer")
    written = _Written(tokenizer, ids, stop, show)
    began = time.perf_counter()
    times, tokens = [began], []
    for token in generate_tokens(
        subject.model,
        torch.tensor([ids], device=subject.device),
        max_tokens=max_tokens,
        sampling=Sampling() if sampling is None else sampling,
        seed=seed,
        schedule=subject.schedule,
        compute_dtype=subject.compute_dtype,
        num_ids=None if tokenizer is None else tokenizer.vocab_size,
    ):
        times.append(time.perf_counter())
        tokens.append(int(token))
        if tokenizer is not None and tokens[-1] in (tokenizer.bos_id, tokenizer.eos_id):
            break  # the document ends, or the next document begins
        if written.stops_at(tokens[-1]):
            break
    written.finish()
    decode_seconds = times[-1] - times[1]
    return Generated(
        text=None if tokenizer is None else written.text,
        tokens=tokens,
        prompt_tokens=len(ids),
        prefill_seconds=times[1] - began,
        tokens_per_second=(len(tokens) - 1) / decode_seconds if len(tokens) > 1 else None,
        schedule=notation(subject.schedule),
        run_schedule=subject.config.model.schedule,
        compute_dtype=subject.compute_dtype,
        form=subject.model.form,
        seed=seed,
    )


def _prompt_ids(
    subject: Subject, prompt: str | Sequence[int], tokenizer: Tokenizer | None
) -> list[int]:
    if isinstance(prompt, str):
        if tokenizer is None:
            raise ValueError(f"{subject.folder}: has no tokenizer; give the prompt as token ids")
        if not (ids := tokenizer.encode(prompt)):
            raise ValueError("the prompt is empty, and this tokenizer has no start token")
        return ids
    if not prompt:
        raise ValueError("the prompt is empty")
    vocab_size = subject.config.model.vocab_size
    for token in prompt:
        if not 0 <= token < vocab_size:
            raise ValueError(f"token id {token} is outside the vocabulary of {vocab_size:,}")
    return list(prompt)


class _Written:
    """The generated text, or token ids without a tokenizer; shows it and looks for stop texts."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        prompt: list[int],
        stops: Sequence[str],
        show: Show | None,
    ) -> None:
        self.text = ""
        self._shown = 0
        self._stops = stops
        self._show_text = show
        self._stream = None if tokenizer is None else TextStream(tokenizer, prompt)

    def stops_at(self, token: int) -> bool:
        """Add a token; true when a stop text is complete."""
        if self._stream is None:
            self.text += f"{token} "
        else:
            self.text += self._stream.push(token)
        ends = [at for stop in self._stops if (at := self.text.find(stop)) >= 0]
        if ends:
            self.text = self.text[: min(ends)]
            self._stream = None
        self._show(len(self.text) if ends else len(self.text) - self._held())
        return bool(ends)

    def finish(self) -> None:
        """Show the rest of the text, which might have become a stop text."""
        if self._stream is not None:
            self.text += self._stream.pending()
        self._show(len(self.text))

    def _held(self) -> int:
        """The number of characters at the end of the text that may begin a stop text."""
        lengths = [
            length
            for stop in self._stops
            for length in range(1, len(stop))
            if self.text.endswith(stop[:length])
        ]
        return max(lengths, default=0)

    def _show(self, until: int) -> None:
        if self._show_text is not None and until > self._shown:
            self._show_text(self.text[self._shown : until])
        self._shown = max(self._shown, until)
