"""Our tokenizers as `transformers` reads them, with the same token ids for every text.

A `tokenizer.json` is written as it is. A SentencePiece model is converted as well. The conversion
of transformers differs from SentencePiece in two points, which this module corrects. It drops a
space at the start of a text, because it prepends the mark of a space only if there is none. It also
merges in the order of ids, but SentencePiece merges the pair with the highest score first. In
Llama's model runs of spaces have low ids and the lowest scores.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from mixerloop import runs
from mixerloop.data.sentencepiece_tokenizer import SentencePieceTokenizer
from mixerloop.data.tokenizer import Tokenizer
from mixerloop.files import json_text, write_file

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
PROBES = (
    *("", " ", "  two  spaces ", "Once upon a time, there was a fox.", "1234 + 56.7 = ?"),
    *("def f(x):\n\treturn x  # ok\n", "<s> </s>", "\u00e9\u00df \u65e5\u672c\u8a9e \u2713"),
    *("\ufb01ne \uff11\uff12", "e\u0301", "\u2581the", "a\u00a0b"),
    *(" " * number + "x" for number in range(2, 40)),
)
"""Texts that kinds of tokenizers tokenise differently."""


def write_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """Write a tokenizer and the files of AutoTokenizer; raises if its ids would differ."""
    for name, content in tokenizer.files.items():
        write_file(folder / name, content)
    if isinstance(tokenizer, SentencePieceTokenizer):
        _write_conversion(folder, tokenizer)
    else:
        _check_conversion(folder, tokenizer)


def _check_conversion(folder: Path, tokenizer: Tokenizer) -> None:
    try:
        from transformers import PreTrainedTokenizerFast
    except ImportError:
        raise _needs_transformers() from None

    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    _check_ids(tokenizer, theirs.encode, advice="its pieces or special tokens are unusual")


def _write_conversion(folder: Path, ours: SentencePieceTokenizer) -> None:
    """Write a tokenizer.json and its config beside a SentencePiece model."""
    try:
        from tokenizers import models, normalizers
        from transformers import LlamaTokenizer
    except ImportError:
        raise _needs_transformers() from None

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
    advice = "byte-pair models as mixerloop data prepare makes them can be"
    _check_ids(ours, tokenizer.encode, advice=advice)
    write_file(folder / runs.TOKENIZER_JSON, backend.to_str())
    named = {name: getattr(tokenizer, name) for name in ("bos_token", "eos_token", "unk_token")}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{name: token for name, token in named.items() if token is not None},
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
    }
    write_file(folder / runs.TOKENIZER_CONFIG, json_text(settings))


def _check_ids(ours: Tokenizer, encode: Callable[[str], list[int]], *, advice: str) -> None:
    for text in PROBES:
        if encode(text) != ours.encode(text):
            raise ValueError(
                f"the tokenizer cannot be exported: transformers would read {text!r} as other "
                f"tokens; {advice}"
            )


def _needs_transformers() -> ValueError:
    return ValueError(
        "a tokenizer for transformers needs transformers: pip install 'mixerloop[hf]'"
    )


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
