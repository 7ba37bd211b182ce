"""Small tokenizers as `tokenizer.json`, trained with the package `tokenizers`."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import needs

SPECIAL = ("<s>", "</s>")
TEXTS = [f"the {word} sat on the mat, and the {word} was it all day" for word in ("cat", "hat")]


def byte_level_bpe(
    texts: Iterable[str] = TEXTS, *, vocab_size: int = 290, special: Iterable[str] = SPECIAL
) -> dict[str, Any]:
    """A byte-level BPE tokenizer, which can encode any text, as the content of its file."""
    tokenizers = needs.module("tokenizers")
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = byte_level(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special),
        initial_alphabet=byte_level.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(list(texts) * 4, trainer)
    return json.loads(tokenizer.to_str())


def template(*, before: str) -> dict[str, Any]:
    """A post-processor that puts the token with the id 0 before each text."""
    text = {"Sequence": {"id": "A", "type_id": 0}}
    other = {"Sequence": {"id": "B", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": before, "type_id": 0}}, text],
        "pair": [text, other],
        "special_tokens": {before: {"id": before, "ids": [0], "tokens": [before]}},
    }


def write_json_tokenizer(folder: Path, content: Mapping[str, Any], **configs: Any) -> Path:
    """Write a tokenizer.json, and a file NAME.json for each further argument NAME."""
    folder.mkdir(exist_ok=True)
    for name, config in {"tokenizer": content, **configs}.items():
        (folder / f"{name}.json").write_text(json.dumps(config))
    return folder
