"""A SentencePiece model as `transformers` reads it, with the same token ids for every text.

The conversion of transformers differs from SentencePiece in two points, which this module corrects.
It drops a space at the start of a text, because it prepends the mark of a space only if there is
none. It also merges in the order of ids, but SentencePiece merges the pair with the highest score
first. In Llama's model runs of spaces have low ids and the lowest scores.
"""

from collections.abc import Sequence
from pathlib import Path

from mixerloop import runs
from mixerloop.data.tokenizer import Tokenizer
from mixerloop.files import json_text, write_file

FILE, SETTINGS = "tokenizer.json", "tokenizer_config.json"
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
PROBES = (
    *("", " ", "  two  spaces ", "Once upon a time, there was a fox.", "1234 + 56.7 = ?"),
    *("def f(x):\n\treturn x  # ok\n", "<s> </s>", "\u00e9\u00df \u65e5\u672c\u8a9e \u2713"),
    *("\ufb01ne \uff11\uff12", "e\u0301", "\u2581the", "a\u00a0b"),
    *(" " * number + "x" for number in range(2, 40)),
)
"""Texts that kinds of SentencePiece models tokenise differently."""


def write_tokenizer(folder: Path) -> None:
    """Write the files of AutoTokenizer beside a `tokenizer.model`; raises if ids would differ."""
    try:
        from tokenizers import models, normalizers
        from transformers import LlamaTokenizer
    except ImportError:
        raise ValueError(
            "a tokenizer for transformers needs transformers: pip install 'mixerloop[hf]'"
        ) from None

    ours = Tokenizer(folder / runs.TOKENIZER)
    tokenizer = LlamaTokenizer.from_pretrained(
        folder, add_bos_token=ours.bos_id >= 0, add_eos_token=False, split_special_tokens=True
    )
    backend = tokenizer.backend_tokenizer
    backend.normalizer = normalizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
    )
    backend.pre_tokenizer = None  # pyright: ignore[reportAttributeAccessIssue]
    pieces = ours.pieces()
    backend.model = models.BPE(  # pyright: ignore[reportAttributeAccessIssue]
        vocab={piece: number for number, (piece, _) in enumerate(pieces)},
        merges=_merges(pieces),
        unk_token=tokenizer.unk_token,
        fuse_unk=True,
        byte_fallback=True,
    )
    for text in PROBES:
        if tokenizer.encode(text) != ours.encode(text):
            raise ValueError(
                f"the tokenizer cannot be exported: transformers would read {text!r} as other "
                "tokens; byte-pair models as mixerloop data prepare makes them can be"
            )
    write_file(folder / FILE, backend.to_str())
    named = {name: getattr(tokenizer, name) for name in ("bos_token", "eos_token", "unk_token")}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{name: token for name, token in named.items() if token is not None},
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
    }
    write_file(folder / SETTINGS, json_text(settings))


def _merges(pieces: Sequence[tuple[str, float]]) -> list[tuple[str, str]]:
    """Every pair of pieces that makes up a piece, in the order in which SentencePiece merges."""
    known = {piece for piece, _ in pieces}
    # The sort is stable: among equal scores the lower id comes first.
    by_score = sorted(pieces, key=lambda piece: -piece[1])
    return [
        (piece[:at], piece[at:])
        for piece, _ in by_score
        for at in range(1, len(piece))
        if piece[:at] in known and piece[at:] in known
    ]
