"""What every tokenizer does: text to token ids and back, and the files a folder keeps of it.

`sentencepiece_tokenizer.py` and `json_tokenizer.py` have the two kinds of tokenizers, and
`tokenizer_files.py` opens the right kind.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from mixerloop.parsing import checked

UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # decodes from bytes that are not yet a character


class Tokenizer(ABC):
    """Text to token ids and back. Control tokens decode to nothing, and no text encodes to them."""

    files: Mapping[str, bytes]
    """The files that a folder with this tokenizer holds, by name."""
    fingerprint: str
    """Identity of the tokenizer, in 64 hexadecimal digits."""
    vocab_size: int
    """One more than the largest token id."""
    bos_id: int
    """The start token; -1 if there is none."""
    eos_id: int
    """The end token; -1 if there is none."""

    @checked
    def encode(self, text: str) -> list[int]:
        """The tokens of a document: the start token, if there is one, then the text."""
        return self.encode_all([text])[0]

    @checked
    def encode_all(self, texts: list[str]) -> list[list[int]]:
        """The tokens of each document, computed on all cores."""
        try:
            for text in texts:
                text.encode()
        except UnicodeEncodeError:
            raise ValueError("the text is not valid UTF-8") from None
        start = [self.bos_id] if self.bos_id >= 0 else []
        return [start + ids for ids in self._encoded(texts)]

    @checked
    def decode(self, ids: list[int]) -> str:
        """The text of token ids; bytes that are not yet a character show as U+FFFD."""
        if ids and not 0 <= min(ids) <= max(ids) < self.vocab_size:
            wrong = min(ids) if min(ids) < 0 else max(ids)
            raise ValueError(f"token id {wrong} is outside the tokenizer's {self.vocab_size:,}")
        return self._decoded(ids)

    @abstractmethod
    def _encoded(self, texts: list[str]) -> list[list[int]]:
        """The tokens of texts, without start tokens."""

    @abstractmethod
    def _decoded(self, ids: list[int]) -> str:
        """The text of token ids of the vocabulary."""


class TextStream:
    """Decodes tokens one by one; a character appears when its last byte has arrived.

    Only the last few tokens are decoded again, so the cost of a token does not grow with the text.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: list[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = list(prompt)
        self._context, self._shown = 0, len(prompt)  # decode from here; shown up to here

    def push(self, token: int) -> str:
        """Append a token and return the text it completes, which may be empty."""
        self._ids.append(token)
        added = self.pending()
        if not added or added.endswith(UNFINISHED):
            return ""  # a control token, or a character that is not complete
        self._context, self._shown = self._shown, len(self._ids)
        return added

    def pending(self) -> str:
        """The text of the tokens that are not shown yet."""
        before = self._tokenizer.decode(self._ids[self._context : self._shown])
        return self._tokenizer.decode(self._ids[self._context :])[len(before) :]
