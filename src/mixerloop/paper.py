"""The figures that the paper prints, to be shown beside our measurements.

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

TRAIN_TOKENS = 10_690_433_521
"""Of ClimbMix, shards 00000 to 00169."""
TOKENIZER_SHA256 = "9e556afd44213b6bd1be2b850ebbbd98f5481437a8021afaf58ee7fb1818d347"
"""Of Llama 2's SentencePiece model, as published with the weights."""
COMPUTE_DTYPE = "bfloat16"
"""Of CORE and transport, by autocast, as in its published code; that of the NLL is not known."""
CORE_CONTEXT = 1024
CORE_UPPER = (
    *("hellaswag_zeroshot", "jeopardy", "bigbench_qa_wikidata", "arc_easy", "arc_challenge"),
    *("copa", "commonsense_qa", "piqa", "openbook_qa", "lambada_openai", "boolq"),
)
CORE_MANIPULATION = (
    *("hellaswag", "winograd", "winogrande", "bigbench_dyck_languages", "agi_eval_lsat_ar"),
    *("bigbench_cs_algorithms", "bigbench_operators", "bigbench_repeat_copy_logic", "squad"),
    *("coqa", "bigbench_language_identification"),
)


@dataclass(frozen=True)
class PaperCore:
    """A model of the big CORE table: centered scores times 100, and the printed means."""

    upper: tuple[float, ...]
    manipulation: tuple[float, ...]
    core_mean: float
    manipulation_mean: float

    def scores(self) -> dict[str, float]:
        """The centered scores times 100, by task label."""
        labels, scores = CORE_UPPER + CORE_MANIPULATION, self.upper + self.manipulation
        return dict(zip(labels, scores, strict=True))


CORE = {
    ("15m", "no_loop"): PaperCore(
        (4.20, 0.14, 8.42, 18.01, -3.07, -16.00, 1.21, 20.13, 3.73, 13.04, -26.43),
        (3.39, 0.37, -1.82, 1.10, 7.07, 39.47, 13.81, 0.00, 0.99, 4.41, 17.96),
        5.01,
        7.89,
    ),
    ("15m", "full_loop"): PaperCore(
        (4.61, 0.05, 6.38, 19.08, -2.62, -8.00, -0.12, 20.78, 4.80, 14.67, -24.01),
        (4.19, 6.96, -3.55, 0.70, 4.35, 38.48, 9.05, 0.00, 1.68, 5.56, 18.38),
        5.52,
        7.80,
    ),
    ("15m", "mixer_loop"): PaperCore(
        (4.07, 0.19, 1.56, 16.67, -3.98, -16.00, 2.13, 19.48, 5.87, 15.02, -6.87),
        (3.83, 9.89, 4.81, 8.90, 5.43, 37.05, 10.95, 0.00, 1.32, 5.51, 17.56),
        6.52,
        9.57,
    ),
    ("110m", "no_loop"): PaperCore(
        (19.62, 1.32, 31.48, 39.11, 3.41, 2.00, 0.70, 37.65, 10.67, 30.60, -19.75),
        (18.89, 12.09, 4.18, 15.00, 8.70, 45.08, 14.76, 0.00, 6.45, 11.56, 18.01),
        14.16,
        14.07,
    ),
    ("110m", "full_loop"): PaperCore(
        (24.48, 2.79, 38.15, 45.06, 7.74, 12.00, 14.21, 38.30, 14.67, 32.35, -21.60),
        (24.29, 18.68, 4.50, 19.90, 7.07, 43.18, 15.24, 3.13, 9.79, 14.19, 17.40),
        17.52,
        16.12,
    ),
    ("110m", "mixer_loop"): PaperCore(
        (21.13, 2.41, 35.30, 41.86, 6.94, 8.00, 10.42, 37.76, 11.73, 30.66, -12.10),
        (20.64, 16.48, 2.76, 9.80, 3.80, 43.03, 12.38, 0.00, 8.03, 12.60, 18.59),
        15.56,
        13.46,
    ),
}
CORE_RETAINED = 0.415
"""The share of the full loop's CORE gain at 110m that the mixer loop retains."""
HELD_OUT_NLL = {
    "15m": {"no_loop": 2.995, "mixer_loop": 2.946, "full_loop": 2.936},
    "110m": {"no_loop": 2.401, "mixer_loop": 2.377, "full_loop": 2.342},
}


@dataclass(frozen=True)
class PaperTransport:
    """Figures of its sections on transport and controls; None where the paper prints no figure."""

    itr: float
    marginal_itr: tuple[float, ...] | None
    """Of the second pass, the third and the fourth."""
    later_share: float | None
    later_gain: float
    """In nats."""
    pairs_novel: str | None
    pairs_positive: str | None


TRANSPORT = {
    ("15m", "mixer_loop"): PaperTransport(
        1.301, (0.988, 0.871, 0.777), 0.542, 0.321, "16 of 18", "18 of 18"
    ),
    ("15m", "full_loop"): PaperTransport(1.305, None, None, 0.210, "18 of 18", None),
    ("110m", "mixer_loop"): PaperTransport(
        1.177, (0.786, 0.688, 0.672), 0.472, 0.070, "19 of 36", "30 of 36"
    ),
    ("110m", "full_loop"): PaperTransport(1.293, None, None, 0.056, "36 of 36", "27 of 36"),
    ("15m", "control"): PaperTransport(1.068, (0.440, 0.283, 0.241), None, -1.5e-4, None, None),
}
"""Trained models; `control` is a mixer loop of fresh weights, measured in bfloat16, see docs."""
