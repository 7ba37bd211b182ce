"""Time of one decoded token after prefixes of different lengths.

    python benchmarks/decode.py [SIZE] [--json]

The states are made by real prefixes and the logits are checked against a forward over the whole
sequence; then one token is decoded from each state in turn, so that noise falls on all alike.
"""

import json
import sys

import torch

from mixerloop import machine
from mixerloop.benchmarking.measure import header, interleaved
from mixerloop.config import preset
from mixerloop.model.decoding import advance, prefill, start
from mixerloop.model.initialization import fresh_model

PREFIXES = [64, 512, 2048, 8192]
CHECKED_PREFIX = 512
TOLERANCE = 1e-5


@torch.inference_mode()
def main() -> None:
    machine.settle()
    names = [argument for argument in sys.argv[1:] if argument != "--json"]
    size = names[0] if names else "nano"
    model = fresh_model(preset(size), seed=0)
    vocab_size = model.config.vocab_size
    tokens = torch.randint(
        vocab_size, (1, PREFIXES[-1] + 1), generator=torch.Generator().manual_seed(0)
    )
    states = {n: prefill(model, tokens[:, :n], start(model))[1] for n in PREFIXES}

    n = CHECKED_PREFIX
    decoded, _ = advance(model, tokens[:, n : n + 1], states[n])
    whole = model(tokens[:, : n + 1], positions=torch.tensor([-1]))
    torch.testing.assert_close(decoded, whole, rtol=0, atol=TOLERANCE)

    token = tokens[:, -1:]
    timings = interleaved(
        {str(n): lambda n=n: advance(model, token, states[n]) for n in PREFIXES}, repeats=60
    )
    first = timings[str(PREFIXES[0])].median
    rows = [
        {
            "prefix": n,
            "milliseconds": 1e3 * timings[str(n)].median,
            "quartiles": [1e3 * timings[str(n)].lower, 1e3 * timings[str(n)].upper],
            "ratio_to_first": timings[str(n)].median / first,
            "state_bytes": states[n].nbytes(),
        }
        for n in PREFIXES
    ]
    if "--json" in sys.argv:
        print(json.dumps({"machine": machine.facts(), "size": size, "cases": rows}, indent=2))
        return
    print(f"# {header()}")
    print(f"one decoded token of {size}, mixer loop, float32: median [quartiles]")
    for row in rows:
        low, high = row["quartiles"]
        print(
            f"{row['prefix']:>6} tokens before: {row['milliseconds']:6.2f} ms "
            f"[{low:.2f}, {high:.2f}], {row['ratio_to_first']:.3f} of the first, "
            f"state {row['state_bytes'] / 1024:,.0f} KiB"
        )


if __name__ == "__main__":
    main()
