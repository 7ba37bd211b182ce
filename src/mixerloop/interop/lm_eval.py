"""Our models in lm-evaluation-harness, as `--model mixerloop --model_args run=RUN`.

The harness does not look for models outside itself, so start it from here:

    python -m mixerloop.interop.lm_eval --model mixerloop --model_args run=RUN --tasks TASK
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mixerloop import runs
from mixerloop.config import ComputeDtype, check_fits
from mixerloop.data.tokenizer import Tokenizer
from mixerloop.evaluation.looped_scorer import LoopedScorer
from mixerloop.evaluation.scorer import Candidate
from mixerloop.interop.loading import load_any
from mixerloop.model.device import find_device
from mixerloop.model.generation import Sampling, generate
from mixerloop.notation import resolve
from mixerloop.parsing import one_of

try:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.defaults import DEFAULT_MAX_LENGTH
    from lm_eval.models.utils import normalize_gen_kwargs
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
except ModuleNotFoundError:
    missing = "mixerloop.interop.lm_eval needs lm-eval: pip install 'mixerloop[lm-eval]'"
    raise (SystemExit if __name__ == "__main__" else ImportError)(missing) from None

DEFAULT_NEW_TOKENS = 256
ASKED_AT_ONCE = 256
GENERATION_KEYS = {"until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p"}


@register_model("mixerloop")
class MixerLoopLM(TemplateLM):
    """A run, a checkpoint or an exported folder."""

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
        """`batch_size` is the harness's own; how much runs at once is the scorer's business."""
        super().__init__()
        found = find_device("auto" if device is None else device, option="device")  # pyright: ignore
        loaded = load_any(Path(run))
        path = loaded.folder / runs.TOKENIZER
        if not path.is_file():
            raise ValueError(f"{run}: has no tokenizer, so it cannot read text")
        self.text = Tokenizer(path)
        check_fits(path, self.text.vocab_size, loaded.config.model.vocab_size)
        self.model = loaded.model.to(found).eval()
        layers = loaded.config.model.num_layers
        self.walked = resolve(schedule or loaded.config.model.schedule, layers)
        self.compute: ComputeDtype = one_of(ComputeDtype, compute_dtype, "compute type")
        self.max_length = int(max_length)
        self.scorer = LoopedScorer(self.model, schedule=self.walked, compute_dtype=self.compute)

    @property
    def eot_token_id(self) -> int:
        """What ends a text."""
        return self.text.eos_id if self.text.eos_id >= 0 else self.prefix_token_id

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text of which nothing is given."""
        if self.text.bos_id < 0:
            raise ValueError("the tokenizer has no start token to put before a text")
        return self.text.bos_id

    @property
    def tokenizer_name(self) -> str:
        """Names the harness's cache of requests."""
        return self.text.fingerprint

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **unused: object
    ) -> list[int]:
        """Token ids, from the start token on unless it is not wanted."""
        ids = self.text.encode(string)
        has_start = self.text.bos_id >= 0
        return ids[1:] if has_start and add_special_tokens is False else ids

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[tuple[str, str], list[int], list[int]]],
        disable_tqdm: bool = False,
        **unused: object,
    ) -> list[tuple[float, bool]]:
        """The log probability of each continuation, and whether greedy decoding would write it."""
        found: list[tuple[float, bool]] = []
        for at in range(0, len(requests), ASKED_AT_ONCE):
            asked = [
                [_candidate(context, continuation, self.max_length)]
                for _, context, continuation in requests[at : at + ASKED_AT_ONCE]
            ]
            for ((tokens, start),), (scores,) in zip(asked, self.scorer.score(asked), strict=True):
                greedy = bool((scores.most_likely == tokens[start:]).all())
                found.append((-float(scores.losses.sum()), greedy))
        return found

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """The log probability of whole texts, in windows that each see what was before.

        As in the harness's own `hf`, a text's start token is scored too, after one that is not.
        """
        found = []
        for (text,) in (request.args for request in requests):
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            parts = [(("", ""), *make_disjoint_window(window)) for window in windows]
            found.append(sum(value for value, _ in self._loglikelihood_tokens(parts)))
        return found

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Text until a stop, one prompt after another."""
        return [self._written(*request.args) for request in requests]

    def _written(self, context: str, options: dict[str, Any]) -> str:
        asked: dict[str, Any] = {**normalize_gen_kwargs(options, DEFAULT_NEW_TOKENS)}
        unknown = set(asked) - GENERATION_KEYS
        if unknown:
            raise ValueError(f"generation option {', '.join(sorted(unknown))} is not known here")
        stops, most = [one for one in asked["until"] if one], asked["max_gen_toks"]
        if not 1 <= most < self.max_length:
            raise ValueError(f"max_gen_toks must be below max_length = {self.max_length}")
        prompt = self.tok_encode(context)[-(self.max_length - most) :]
        sampling = Sampling(
            temperature=asked.get("temperature", 1.0) if asked["do_sample"] else 0.0,
            top_k=asked.get("top_k"),
            top_p=asked.get("top_p"),
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
                break  # the text ends, or the next one begins
            written.append(int(token))
            if any(stop in self.text.decode(written) for stop in stops):
                break
        text = self.text.decode(written)  # by itself, as the harness's own `hf` reads it
        return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=None)]


def _candidate(context: list[int], continuation: list[int], most: int) -> Candidate:
    """Cropped from the left; the first token of all can not be scored."""
    if len(continuation) > most:
        raise ValueError(f"a continuation has {len(continuation)} tokens; max_length is {most}")
    whole = (context + continuation)[-(most + 1) :]
    start = max(1, len(whole) - len(continuation))
    return Candidate(np.array(whole, dtype=np.int64), start)


if __name__ == "__main__":
    import lm_eval.models  # noqa: F401  # its own, which it registers only if there are none yet
    from lm_eval.__main__ import cli_evaluate

    import mixerloop.interop.hf  # noqa: F401  # so that --model hf can read exported folders

    cli_evaluate()
