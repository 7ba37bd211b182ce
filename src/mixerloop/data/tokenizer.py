"""SentencePiece tokenizers, each known by the hash of its model."""

import hashlib
from pathlib import Path

import sentencepiece

UNFINISHED = "\N{REPLACEMENT CHARACTER}"


class Tokenizer:
    """Text to token ids and back."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise ValueError(f"{path}: there is no such tokenizer file")
        model = path.read_bytes()
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            loaded = bool(model) and self._processor.LoadFromSerializedProto(model)
        except RuntimeError:
            loaded = False
        if not loaded:
            raise ValueError(f"{path}: not a SentencePiece model")
        self.fingerprint = hashlib.sha256(model).hexdigest()
        """The sha256 of the model; two tokenizers are the same when this is."""
        self.vocab_size: int = self._processor.vocab_size()
        self.bos_id: int = self._processor.bos_id()
        """-1 when the model has none."""
        self.eos_id: int = self._processor.eos_id()

    def encode(self, text: str) -> list[int]:
        """A document: the start token, where the model has one, and the text's tokens."""
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("the text is not valid UTF-8") from None
        start = [self.bos_id] if self.bos_id >= 0 else []
        return start + self._processor.EncodeAsIds(text)

    def decode(self, ids: list[int]) -> str:
        """The text of token ids; bytes that are not yet a character show as U+FFFD."""
        if ids and not 0 <= min(ids) <= max(ids) < self.vocab_size:
            wrong = min(ids) if min(ids) < 0 else max(ids)
            raise ValueError(f"token id {wrong} is outside the tokenizer's {self.vocab_size:,}")
        return self._processor.DecodeIds(ids)


class TextStream:
    """The text of tokens as they come: a character appears when its last byte has arrived.

    Only the last few tokens are decoded again, so a token costs the same however long the text is.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: list[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = list(prompt)
        self._context, self._shown = (
            0,
            len(prompt),
        )  # where decoding starts, and what is out already

    def push(self, token: int) -> str:
        """What one more token adds to the text, which may be nothing yet."""
        self._ids.append(token)
        added = self.pending()
        if not added or added.endswith(UNFINISHED):
            return ""  # a control token, or a character that is not complete
        self._context, self._shown = self._shown, len(self._ids)
        return added

    def pending(self) -> str:
        """What has not come out yet."""
        before = self._tokenizer.decode(self._ids[self._context : self._shown])
        return self._tokenizer.decode(self._ids[self._context :])[len(before) :]
