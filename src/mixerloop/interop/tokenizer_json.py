"""A SentencePiece model as `transformers` reads it, with the same token ids for every text.

The conversion of transformers drops one space in front of a text that begins with one: it only
prepends the mark of a space where there is none. SentencePiece prepends it always, and so do we.
"""

from pathlib import Path

from mixerloop import runs

FILE, SETTINGS = "tokenizer.json", "tokenizer_config.json"
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


def write_tokenizer(folder: Path) -> None:
    """Beside the folder's `tokenizer.model`, what AutoTokenizer needs."""
    try:
        from tokenizers import normalizers
        from transformers import LlamaTokenizer
    except ImportError:
        raise ValueError(
            "a tokenizer for transformers needs transformers: pip install 'mixerloop[hf]'"
        ) from None

    tokenizer = LlamaTokenizer.from_pretrained(
        folder, add_bos_token=True, add_eos_token=False, split_special_tokens=True
    )
    backend = tokenizer.backend_tokenizer
    backend.normalizer = normalizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
    )
    backend.pre_tokenizer = None  # pyright: ignore[reportAttributeAccessIssue]
    runs.write_file(folder / FILE, backend.to_str())
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokenizer.bos_token,
        "eos_token": tokenizer.eos_token,
        "unk_token": tokenizer.unk_token,
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
    }
    runs.write_file(folder / SETTINGS, runs.to_json(settings))
