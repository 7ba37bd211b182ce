"""A SentencePiece model as `transformers` reads it, with the same token ids for every text.

The conversion of transformers drops one space in front of a text that begins with one: it only
prepends the mark of a space where there is none. SentencePiece prepends it always, and so do we.
"""

from pathlib import Path

from mixerloop import runs
from mixerloop.data.tokenizer import Tokenizer

FILE, SETTINGS = "tokenizer.json", "tokenizer_config.json"
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
PROBES = (
    *("", " ", "  two  spaces ", "Once upon a time, there was a fox.", "1234 + 56.7 = ?"),
    *("def f(x):\n\treturn x  # ok\n", "<s> </s>", "\u00e9\u00df \u65e5\u672c\u8a9e \u2713"),
    *("\ufb01ne \uff11\uff12", "e\u0301", "\u2581the", "a\u00a0b"),
)
"""Texts on which kinds of SentencePiece models differ."""


def write_tokenizer(folder: Path) -> None:
    """Beside a `tokenizer.model`, what AutoTokenizer needs; refused if its ids would differ."""
    try:
        from tokenizers import normalizers
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
    for text in PROBES:
        if tokenizer.encode(text) != ours.encode(text):
            raise ValueError(
                f"the tokenizer cannot be exported: transformers would read {text!r} as other "
                "tokens; byte-pair models as mixerloop data prepare makes them can be"
            )
    runs.write_file(folder / FILE, backend.to_str())
    named = {name: getattr(tokenizer, name) for name in ("bos_token", "eos_token", "unk_token")}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{name: token for name, token in named.items() if token is not None},
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
    }
    runs.write_file(folder / SETTINGS, runs.to_json(settings))
