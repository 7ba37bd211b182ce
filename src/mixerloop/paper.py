"""What the paper prints, to be shown beside what we measure.

"Allocating Recurrent Compute in Looped Language Models", arXiv 2608.18230. Nothing here is ours.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class PaperCost:
    """Section "Estimated Compute Reduction", and the sizes in "Training Settings"; T = 4."""

    parameters: str
    ffn_share: str
    mixer_to_full_ratio: str
    saving_with_head: str


COST = {
    "15m": PaperCost("15.7M", "61.2 %", "0.541", "33.9 %"),
    "110m": PaperCost("116.9M", "61.3 %", "0.541", "43.0 %"),
}
PREFILL = "1.34 x at 15m, batch 32; 1.52 x at 110m, batch 16"
"""Mixer over full, bfloat16 on an RTX 3090 Ti, 1,024 tokens."""
