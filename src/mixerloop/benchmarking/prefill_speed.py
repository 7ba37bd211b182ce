"""Prefill: the time of a prompt under each loop, by the paper's protocol."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from mixerloop import machine
from mixerloop.benchmarking.conditions import check_tokens_fit, config_of, provenance_of
from mixerloop.benchmarking.measure import Quartiles, check_close, interleaved
from mixerloop.benchmarking.settings import PrefillSettings
from mixerloop.config import ComputeDtype, ModelConfig
from mixerloop.model.accounting import account_model, account_schedule
from mixerloop.model.device import find_device
from mixerloop.model.initialization import fresh_model
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.ops.gated_delta_rule import choose_form
from mixerloop.ops.precision import compute_in
from mixerloop.parsing import checked

LOOPS = ("no_loop", "mixer_loop", "full_loop")
CHECKED_TOKENS = 80
AGREE = {
    "float32": 1e-4,
    "bfloat16": 2.0**-5,
}  # for logits of about 1, after the rounding of six or more layers


@dataclass(frozen=True, kw_only=True)
class PrefillCase:
    """One size and batch: milliseconds of each loop, and the mixer loop over the full loop."""

    size: str
    batch: int
    length: int
    milliseconds: dict[str, Quartiles]
    mixer_over_full: float
    """Tokens per second of the mixer loop over those of the full loop."""
    mixer_over_full_quartiles: tuple[float, float]
    flop_limit: float
    """The same ratio from the work of the projections alone, without the head."""


@dataclass(frozen=True, kw_only=True)
class PrefillBench:
    """The times of all sizes and batches, and the conditions they were taken under."""

    cases: tuple[PrefillCase, ...]
    provenance: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The JSON that `mixerloop bench prefill --json` prints."""
        return asdict(self)


@checked
def bench_prefill(
    settings: PrefillSettings | None = None,
    *,
    progress: Callable[[PrefillCase], None] | None = None,
) -> PrefillBench:
    """Time prompts under each loop; `progress` is called with each case when it is timed."""
    settings = PrefillSettings() if settings is None else settings
    settings.check()
    machine.keep_freed_memory()
    configs = {size: config_of(size) for size in settings.sizes}
    device = find_device(settings.device, option="device")
    for config in configs.values() if device.type == "cpu" else ():
        most = max(settings.batches)
        what = f"batches = {most:,}, length = {settings.length:,}"
        check_tokens_fit(config, most * settings.length, residuals=2, what=what)
    neighbours = machine.Neighbours()
    cases = []
    for size, config in configs.items():
        models = Prefill(size, config, compute_dtype=settings.compute_dtype, device=device)
        for batch in settings.batches:
            case = models.measure(
                batch,
                length=settings.length,
                warmup=settings.warmup,
                repeats=settings.repeats,
            )
            cases.append(case)
            if progress is not None:
                progress(case)
    provenance = provenance_of(
        neighbours,
        compute_dtype=settings.compute_dtype,
        repeats=settings.repeats,
        device=device.type,
    )
    return PrefillBench(cases=tuple(cases), provenance=provenance)


class Prefill:
    """The loops of one size, with the same weights."""

    compute_dtype: ComputeDtype

    def __init__(
        self,
        size: str,
        config: ModelConfig,
        *,
        compute_dtype: ComputeDtype,
        device: torch.device | None = None,
    ) -> None:
        self.size, self.config, self.compute_dtype = size, config, compute_dtype
        self.device = device or torch.device("cpu")
        self.models = {
            loop: fresh_model(
                replace(config, schedule=loop),
                seed=0,
                form=choose_form("auto", self.device.type),
            )
            .to(self.device)
            .eval()
            for loop in LOOPS
        }
        account = account_model(config)
        self.flop_limit = (
            1
            / account_schedule(
                account, self.models["mixer_loop"].schedule, num_layers=config.num_layers
            ).backbone_ratio_to_full_loop
        )
        self._check()

    def measure(self, batch: int, *, length: int, warmup: int, repeats: int) -> PrefillCase:
        """Time the loops in turn; each call computes the logits after the last token."""
        tokens = self._tokens(batch, length).to(self.device)
        times = interleaved(
            {
                loop: lambda model=model: self._timed(model, tokens)
                for loop, model in self.models.items()
            },
            warmup=warmup,
            repeats=repeats,
        )
        ratio = times["full_loop"].over(times["mixer_loop"])
        return PrefillCase(
            size=self.size,
            batch=batch,
            length=length,
            milliseconds={loop: timing.milliseconds for loop, timing in times.items()},
            mixer_over_full=ratio.median,
            mixer_over_full_quartiles=(ratio.lower, ratio.upper),
            flop_limit=self.flop_limit,
        )

    def _check(self) -> None:
        """Check the logits of the timed code against those of the torch form in float32."""
        tokens = self._tokens(1, CHECKED_TOKENS)
        for loop, model in self.models.items():
            plain = fresh_model(model.config, seed=0, form="torch").eval()
            with torch.inference_mode():
                wanted = plain(tokens)[:, -1:]
            check_close(
                f"{self.size} {loop}",
                self._last_logits(model, tokens.to(self.device)).cpu(),
                wanted,
                tolerance=AGREE[self.compute_dtype],
            )

    def _last_logits(self, model: LoopedLM, tokens: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode(), compute_in(self.compute_dtype, self.device.type):
            return model(tokens, positions=torch.tensor([-1], device=self.device))

    def _timed(self, model: LoopedLM, tokens: torch.Tensor) -> None:
        """Compute the last logits, and wait until the device has finished."""
        self._last_logits(model, tokens)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _tokens(self, batch: int, length: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.randint(self.config.vocab_size, (batch, length), generator=generator)
