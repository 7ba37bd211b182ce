"""Tokenizers in a `tokenizer.json`, the format of Hugging Face's package `tokenizers`.

The package is optional and is loaded when such a tokenizer is opened. Nothing in a `tokenizer.json`
can run code.
"""

import functools
import hashlib
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mixerloop import runs
from mixerloop.data.special_tokens import NamedToken, config_text, named_token
from mixerloop.data.tokenizer import Tokenizer
from mixerloop.files import read_file
from mixerloop.parsing import one_line

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

PARALLELISM = "TOKENIZERS_PARALLELISM"
RANDOM = ("dropout", "alpha")
"""Options of a model with which a text has other tokens each time."""
TRIAL = "Once, 12 times:\n\tsi\u00f1o \u65e5\u672c \U0001f600"
STDERR = 2
_stderr_lock = threading.Lock()


class JsonTokenizer(Tokenizer):
    """A tokenizer.json with the start and the end token that the files beside it name.

    A file with another name stands alone. Where no file names a start token, it is the token that
    the template in the file puts before a text. `files` has a tokenizer.json whose template puts
    exactly our start token before a text: the file itself, or the file with another template. The
    fingerprint covers that file and both tokens.
    """

    def __init__(self, path: Path) -> None:
        content = read_file(path)
        self._path = path
        with _no_panic_messages():
            self._backend = _loaded(path, content)
            trial = _tried(path, self._backend)
        folder = path.parent if path.name == runs.TOKENIZER_JSON else None
        start = None if folder is None else named_token(folder, "bos")
        end = None if folder is None else named_token(folder, "eos")
        self.bos_id = trial.start if start is None else self._id_of(start)
        self.eos_id = -1 if end is None else self._id_of(end)
        bos, eos = (self._text_of(number) for number in (self.bos_id, self.eos_id))
        # Some files have these tokens as plain pieces, which would decode to text.
        self._backend.add_special_tokens([text for text in (bos, eos) if text is not None])
        self.vocab_size = 1 + max(self._backend.get_vocab().values())
        kept = (
            content if trial.adds_only(self.bos_id) else _with_template(content, bos, self.bos_id)
        )
        config = config_text(bos=bos, eos=eos)
        self.files = {runs.TOKENIZER_JSON: kept, runs.TOKENIZER_CONFIG: config.encode()}
        identity = f"{hashlib.sha256(kept).hexdigest()} {self.bos_id} {self.eos_id}"
        self.fingerprint = hashlib.sha256(identity.encode()).hexdigest()

    def _encoded(self, texts: list[str]) -> list[list[int]]:
        with _rejecting(self._path):
            encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def _decoded(self, ids: list[int]) -> str:
        with _rejecting(self._path):
            return self._backend.decode(ids, skip_special_tokens=True)

    def _id_of(self, named: NamedToken) -> int:
        """The id of a token that a file names; -1 if the file says that there is no such token."""
        token = named.token
        if token is None:
            return -1
        number = self._backend.token_to_id(token) if isinstance(token, str) else token
        if number is None or self._text_of(number) is None:
            raise ValueError(f"{named.file}: {named.key} {token!r} is not a token of {self._path}")
        return number

    def _text_of(self, number: int) -> str | None:
        return self._backend.id_to_token(number) if 0 <= number < 2**32 else None


def _loaded(path: Path, content: bytes) -> "Backend":
    """A tokenizer that reads a text of any length as text, and as the same tokens each time."""
    try:
        from tokenizers import Tokenizer as Backend
    except ImportError:
        raise ValueError(
            f"{path}: a tokenizer.json needs tokenizers: pip install 'mixerloop[hf]'"
        ) from None
    os.environ.setdefault(PARALLELISM, "true")  # without a setting it warns after a fork
    _use_one_core_after_forks()
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not a tokenizer.json: it is not UTF-8") from None
    with _rejecting(path):
        backend = Backend.from_str(text)
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True
    if not backend.get_vocab_size():
        raise ValueError(f"{path}: this tokenizer has no tokens")
    for option in RANDOM:
        if getattr(backend.model, option, None):
            raise ValueError(
                f"{path}: its {option} gives a text other tokens each time; set {option} to null"
            )
    return backend


UNKNOWN = "unk"
"""In the messages of `tokenizers` about a character that a vocabulary lacks."""


@dataclass(frozen=True)
class _Trial:
    """The tokens of a text, and its tokens with those that the template of the file adds."""

    plain: list[int]
    whole: list[int]

    @property
    def start(self) -> int:
        """The token that the template puts before a text; -1 if there is none."""
        is_shifted = self.plain and self.whole[1 : 1 + len(self.plain)] == self.plain
        return self.whole[0] if is_shifted else -1

    def adds_only(self, start: int) -> bool:
        """Whether the template adds a start token, or nothing for -1."""
        added = [] if start < 0 else [start]
        return bool(self.plain) and self.whole == added + self.plain


def _tried(path: Path, backend: "Backend") -> _Trial:
    """Encode and decode a text, so that files that cannot be used are rejected when opened."""
    with _rejecting(path):
        try:
            plain, whole = (
                backend.encode(TRIAL, add_special_tokens=adds).ids for adds in (False, True)
            )
            backend.decode(whole)
        except Exception as error:
            if UNKNOWN not in str(error).lower():
                raise
            return _Trial([], [])  # a closed vocabulary lacks some character of the trial text
    return _Trial(plain, whole)


def _with_template(content: bytes, start: str | None, number: int) -> bytes:
    """The file with a template that puts a start token before a text, or adds nothing."""
    first = [] if start is None else [{"SpecialToken": {"id": start, "type_id": 0}}]
    text, pair = ({"Sequence": {"id": name, "type_id": 0}} for name in ("A", "B"))
    template = {
        "type": "TemplateProcessing",
        "single": [*first, text],
        "pair": [*first, text, pair],
        "special_tokens": {start: {"id": start, "ids": [number], "tokens": [start]}}
        if first
        else {},
    }
    return json.dumps(json.loads(content) | {"post_processor": template}).encode()


@contextmanager
def _rejecting(path: Path) -> Iterator[None]:
    """Turn the errors of `tokenizers` into a ValueError with the name of the file.

    The package raises exactly `Exception`. A panic of its Rust code is a BaseException whose type
    cannot be imported.
    """
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"{path}: not a usable tokenizer.json: {one_line(error)}") from None


@contextmanager
def _no_panic_messages() -> Iterator[None]:
    """Discard what is written to stderr: Rust writes a backtrace there before a panic is raised."""
    with _stderr_lock, Path(os.devnull).open("wb") as nowhere:
        stderr = os.dup(STDERR)
        os.dup2(nowhere.fileno(), STDERR)
        try:
            yield
        finally:
            os.dup2(stderr, STDERR)
            os.close(stderr)


@functools.cache
def _use_one_core_after_forks() -> None:
    """Keep forked processes from waiting for the package's threads, which do not survive a fork."""
    os.register_at_fork(after_in_child=lambda: os.environ.update({PARALLELISM: "false"}))
