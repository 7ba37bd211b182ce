"""SentencePiece tokenizers, each known by the hash of its model."""

import hashlib
from pathlib import Path

import sentencepiece


class Tokenizer:
    """Text to token ids and back."""

    def __init__(self, path: Path) -> None:
        try:
            model = path.read_bytes()
        except OSError as error:
            raise ValueError(f"{path}: cannot read this tokenizer: {error.strerror}") from None
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
        start = [self.bos_id] if self.bos_id >= 0 else []
        return start + self._processor.EncodeAsIds(text)

    def decode(self, ids: list[int]) -> str:
        """The text of token ids; bytes that are not yet a character show as U+FFFD."""
        return self._processor.DecodeIds(ids)
