"""Our models in lm-evaluation-harness, as `--model mixerloop --model_args run=RUN`.

The harness does not look for models outside itself, so start it from here:

    python -m mixerloop.interop.lm_eval --model mixerloop --model_args run=RUN --tasks TASK

Without `--device` the harness passes `cuda:0`, also on machines without CUDA. This module then
chooses the device as `--device auto` does.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mixerloop.config import ComputeDtype
from mixerloop.evaluation.looped_scorer import LoopedScorer
from mixerloop.evaluation.scorer import Candidate
from mixerloop.interop.loading import load_any
from mixerloop.model.device import find_device
from mixerloop.model.generation import Sampling, generate
from mixerloop.notation import resolve
from mixerloop.parsing import one_line, one_of, suggest
from mixerloop.program import run_program
from mixerloop.subject import fitting_tokenizer

try:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.defaults import DEFAULT_MAX_LENGTH
    from lm_eval.models.utils import normalize_gen_kwargs
    from lm_eval.utils import (
        get_rolling_token_windows,
        make_disjoint_window,
        simple_parse_args_string,
    )
except ModuleNotFoundError:
    missing = "mixerloop.interop.lm_eval needs lm-eval: pip install 'mixerloop[lm-eval]'"
    raise (SystemExit if __name__ == "__main__" else ImportError)(missing) from None

NAME = "mixerloop"
"""The name of our models in the harness."""
DEFAULT_NEW_TOKENS = 256
ASKED_AT_ONCE = 256
MODEL_ARGUMENTS = ("run", "schedule", "compute_dtype", "max_length")
"""The arguments of the model that a user gives; the harness has options for the others."""
GENERATION_KEYS = {"until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p"}


@register_model(NAME)
class MixerLoopLM(TemplateLM):
    """The harness's interface to the model of a run, a checkpoint or an exported folder."""

    def __init__(
        self,
        run: str,
        schedule: str | None = None,
        compute_dtype: str = "float32",
        max_length: int = DEFAULT_MAX_LENGTH,
        device: str | None = None,
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
    ) -> None:
        """The harness passes `batch_size`, which is ignored: the scorer chooses its own batches."""
        super().__init__()
        torch_device = find_device("auto" if device is None else device, option="device")
        loaded = load_any(Path(str(run)))  # the harness makes a number of run=1
        vocab_size = loaded.config.model.vocab_size
        self.text = fitting_tokenizer(loaded.folder, vocab_size=vocab_size)
        self.model = loaded.model.to(torch_device).eval()
        layers = loaded.config.model.num_layers
        self.walked = resolve(schedule or loaded.config.model.schedule, layers)
        self.compute: ComputeDtype = one_of(ComputeDtype, compute_dtype, "compute type")
        self.max_length = int(max_length)
        self.scorer = LoopedScorer(self.model, schedule=self.walked, compute_dtype=self.compute)

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: dict[str, Any] | None = None
    ) -> "MixerLoopLM":
        """The model of `--model_args` as text."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> "MixerLoopLM":
        """The model of `--model_args`; an argument that it does not have is an error."""
        for name in arg_dict:
            if name not in MODEL_ARGUMENTS:
                known = suggest(name, MODEL_ARGUMENTS)
                raise ValueError(f"model_args: unknown argument {one_line(name)}; {known}")
        if "run" not in arg_dict:
            raise ValueError("model_args: name a run, as run=RUN")
        return super().create_from_arg_obj(arg_dict, additional_config)

    @property
    def eot_token_id(self) -> int:
        """The end token, or the start token of a tokenizer without an end token."""
        return self.text.eos_id if self.text.eos_id >= 0 else self.prefix_token_id

    @property
    def prefix_token_id(self) -> int:
        """The start token, which the harness puts before a text without context."""
        if self.text.bos_id < 0:
            raise ValueError("the tokenizer has no start token to put before a text")
        return self.text.bos_id

    @property
    def tokenizer_name(self) -> str:
        """The tokenizer's fingerprint, which names the harness's cache of requests."""
        return self.text.fingerprint

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **unused: object
    ) -> list[int]:
        """Token ids, with the start token unless `add_special_tokens` is false."""
        ids = self.text.encode(string)
        has_start = self.text.bos_id >= 0
        return ids[1:] if has_start and add_special_tokens is False else ids

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[tuple[str, str], list[int], list[int]]],
        disable_tqdm: bool = False,
        **unused: object,
    ) -> list[tuple[float, bool]]:
        """The log likelihood of each continuation, and whether greedy decoding would produce it."""
        likelihoods: list[tuple[float, bool]] = []
        for at in range(0, len(requests), ASKED_AT_ONCE):
            candidates = [
                [_candidate(context, continuation, self.max_length)]
                for _, context, continuation in requests[at : at + ASKED_AT_ONCE]
            ]
            for ((tokens, start),), (scores,) in zip(
                candidates, self.scorer.score(candidates), strict=True
            ):
                greedy = bool((scores.most_likely == tokens[start:]).all())
                likelihoods.append((-float(scores.losses.sum()), greedy))
        return likelihoods

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """The log likelihood of whole texts, in windows that include the tokens before them.

        As in the harness's own `hf`, the start token of a text is scored too, after a second start
        token that is not scored.
        """
        likelihoods = []
        for (text,) in (request.args for request in requests):
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            parts = [(("", ""), *make_disjoint_window(window)) for window in windows]
            likelihoods.append(sum(value for value, _ in self._loglikelihood_tokens(parts)))
        return likelihoods

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Generate text up to a stop text, one prompt after another."""
        return [self._written(*request.args) for request in requests]

    def _written(self, context: str, options: dict[str, Any]) -> str:
        settings: dict[str, Any] = {**normalize_gen_kwargs(options, DEFAULT_NEW_TOKENS)}
        unknown = set(settings) - GENERATION_KEYS
        if unknown:
            raise ValueError(f"generation option {', '.join(sorted(unknown))} is not known here")
        stops, most = [stop for stop in settings["until"] if stop], settings["max_gen_toks"]
        if not 1 <= most < self.max_length:
            raise ValueError(f"max_gen_toks must be below max_length = {self.max_length}")
        prompt = self.tok_encode(context)[-(self.max_length - most) :]
        sampling = Sampling(
            temperature=settings.get("temperature", 1.0) if settings["do_sample"] else 0.0,
            top_k=settings.get("top_k"),
            top_p=settings.get("top_p"),
        )
        device = self.model.embedding.weight.device
        written: list[int] = []
        for token in generate(
            self.model,
            torch.tensor([prompt], device=device),
            max_tokens=most,
            sampling=sampling,
            seed=0,
            schedule=self.walked,
            compute_dtype=self.compute,
            num_ids=self.text.vocab_size,
        ):
            if int(token) in (self.text.eos_id, self.text.bos_id):
                break  # the document ends, or the next document begins
            written.append(int(token))
            if any(stop in self.text.decode(written) for stop in stops):
                break
        text = self.text.decode(written)  # without its prompt, as in the harness's own `hf`
        return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=None)]


def _candidate(context: list[int], continuation: list[int], most: int) -> Candidate:
    """A candidate, cropped from the left. Its first token cannot be scored: none is before it."""
    if len(continuation) > most:
        raise ValueError(f"a continuation has {len(continuation)} tokens; max_length is {most}")
    whole = (context + continuation)[-(most + 1) :]
    start = max(1, len(whole) - len(continuation))
    return Candidate(np.array(whole, dtype=np.int64), start)


def main() -> None:
    """Run the harness on the arguments of this process; an error is one line."""
    import lm_eval.models  # noqa: F401  # lm_eval registers its own models only if no model is registered
    from lm_eval.__main__ import HarnessCLI, setup_logging

    import mixerloop.interop.hf  # noqa: F401  # so that --model hf can read exported folders

    def evaluate() -> None:
        harness = HarnessCLI()
        arguments = harness.parse_args()
        is_ours = getattr(arguments, "model", None) == NAME
        if is_ours and arguments.device is None and arguments.config is None:
            arguments.device = "auto"
        harness.execute(arguments)

    setup_logging()
    run_program(evaluate)


if __name__ == "__main__":
    main()
