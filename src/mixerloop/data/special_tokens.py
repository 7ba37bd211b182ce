"""The start and the end token of a `tokenizer.json`, as the files beside it name them.

A `tokenizer.json` does not say which of its tokens begin and end a document. In the folders of
`transformers` these files say it, the first of them first:

    tokenizer_config.json     bos_token and eos_token as text; add_bos_token
    config.json               bos_token_id and eos_token_id
    generation_config.json    the same
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mixerloop import runs
from mixerloop.files import is_there, json_text, read_json

ID_FILES = (runs.TRANSFORMERS_CONFIG, "generation_config.json")


@dataclass(frozen=True, kw_only=True)
class NamedToken:
    """What a file says about the start or the end token."""

    token: str | int | None
    """Its text or its id; None if the file says that there is no such token."""
    file: Path
    key: str


def named_token(folder: Path, role: Literal["bos", "eos"]) -> NamedToken | None:
    """What the files of a folder say about a token; None if they do not mention it."""
    file, key = folder / runs.TOKENIZER_CONFIG, f"{role}_token"
    config = _read(file)
    if config.get(f"add_{key}") is False and role == "bos":
        return NamedToken(token=None, file=file, key=f"add_{key}")
    if key in config:
        return NamedToken(token=_text(config[key], file, key), file=file, key=key)
    key = f"{role}_token_id"
    for file in (folder / name for name in ID_FILES):
        number = _number(_read(file).get(key), file, key)
        if number is not None:
            return NamedToken(token=number, file=file, key=key)
    return None


def config_text(*, bos: str | None, eos: str | None) -> str:
    """A tokenizer_config.json that names both tokens.

    With it `transformers` reads special tokens in a text as text. Whether it puts the start token
    before a text is decided by the template in tokenizer.json; other programs ask `add_bos_token`.
    """
    return json_text(
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": bos,
            "eos_token": eos,
            "add_bos_token": bos is not None,
            "add_eos_token": False,
            "split_special_tokens": True,
            "clean_up_tokenization_spaces": False,
        }
    )


def _read(file: Path) -> dict[str, Any]:
    """The object of a JSON file; empty if there is no such file."""
    if not is_there(file):
        return {}
    config = read_json(file)
    if not isinstance(config, dict):
        raise ValueError(f"{file}: not an object")
    return config


def _text(value: object, file: Path, key: str) -> str | None:
    """A token as text, which may stand in an object as its content."""
    text = value.get("content") if isinstance(value, dict) else value
    if text is not None and not isinstance(text, str):
        raise ValueError(f"{file}: {key} is not a text: {text!r}")
    return text


def _number(value: object, file: Path, key: str) -> int | None:
    """A token id; of a list of ids the first."""
    number = value[0] if isinstance(value, list) and value else value
    if number is not None and type(number) is not int:
        raise ValueError(f"{file}: {key} is not a token id: {number!r}")
    return number
