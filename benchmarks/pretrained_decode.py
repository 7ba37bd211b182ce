"""Decode an imported model here and in `transformers`, in turn.

    python benchmarks/pretrained_decode.py --run RUN [--repeats 10] [--json]

The run is exported in the layout of its import and read by `transformers`. Both continue the same
prompt greedily. The first decoded token's logits must agree before anything is timed. The ratio is
the time of `transformers` over ours: above 1 we are faster. Let nothing else run meanwhile.
"""

import argparse
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from mixerloop.benchmarking.measure import Quartiles, check_close, header, interleaved
from mixerloop.files import json_text
from mixerloop.interop.conversion import export_run
from mixerloop.interop.loading import open_subject
from mixerloop.model.decoding import advance, prefill, start
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.program import run_program
from mixerloop.provenance import collect_provenance

PREFIXES = (16, 256, 1024)
TOKENS = 32  # decoded one after another in a timed call
AGREE = 1e-3  # two implementations in float32, over all layers
SEED = 0


@dataclass(frozen=True, kw_only=True)
class Case:
    """The time of a token after a prefix, here and in `transformers`."""

    prefix: int
    milliseconds: Quartiles
    transformers_milliseconds: Quartiles
    ratio: Quartiles


@torch.inference_mode()
def compare(ours: LoopedLM, theirs: Any, prefix: int, *, repeats: int) -> Case:
    """Time `TOKENS` greedy tokens after a prefix; the prefix itself is not timed."""
    generator = torch.Generator().manual_seed(SEED)
    prompt = torch.randint(ours.config.vocab_size, (1, prefix + 1), generator=generator)
    first = prompt[:, -1:]
    state = prefill(ours, prompt[:, :-1], start(ours))[1]
    logits, _ = advance(ours, first, state)
    wanted = theirs(prompt).logits[:, -1]
    check_close("decoding", logits.reshape(wanted.shape), wanted, tolerance=AGREE)

    def decode_here() -> None:
        token, now = first, state
        for _ in range(TOKENS):
            logits, now = advance(ours, token, now)
            token = logits.reshape(1, -1).argmax(-1, keepdim=True)

    cache = theirs(prompt[:, :-1], use_cache=True).past_key_values

    def decode_there() -> None:
        token = first
        for _ in range(TOKENS):
            logits = theirs(token, past_key_values=cache, use_cache=True).logits
            token = logits[:, -1].argmax(-1, keepdim=True)
        cache.crop(-TOKENS)

    times = interleaved({"here": decode_here, "there": decode_there}, warmup=2, repeats=repeats)
    here, there = (times[name].of_one(TOKENS) for name in ("here", "there"))
    return Case(
        prefix=prefix,
        milliseconds=here.milliseconds,
        transformers_milliseconds=there.milliseconds,
        ratio=there.over(here),
    )


def main() -> None:
    """Export, check, time, print."""
    from transformers import AutoModelForCausalLM

    parser = argparse.ArgumentParser(description="Decode here and in transformers.")
    parser.add_argument("--run", type=Path, required=True, help="an imported model")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    given = parser.parse_args()
    subject = open_subject(given.run)
    with tempfile.TemporaryDirectory() as folder:
        export_run(given.run, Path(folder) / "theirs")
        theirs = AutoModelForCausalLM.from_pretrained(Path(folder) / "theirs").eval()
    cases = [compare(subject.model, theirs, prefix, repeats=given.repeats) for prefix in PREFIXES]
    if given.json:
        facts = {"cases": [asdict(case) for case in cases], "provenance": collect_provenance()}
        print(json_text(facts), end="")
        return
    print(header())
    print(f"{'prefix':>6}  {'ms/token':>8}  {'transformers':>12}  ratio [quartiles]")
    for case in cases:
        ratio = f"{case.ratio.median:.2f} [{case.ratio.lower:.2f}, {case.ratio.upper:.2f}]"
        there = case.transformers_milliseconds.median
        print(f"{case.prefix:>6}  {case.milliseconds.median:>8.1f}  {there:>12.1f}  {ratio}")


if __name__ == "__main__":
    run_program(main)
