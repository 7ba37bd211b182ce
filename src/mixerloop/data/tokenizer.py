"""SentencePiece tokenizers, each identified by the hash of its model."""

import hashlib
import io
from collections.abc import Iterable, Iterator
from pathlib import Path

import sentencepiece

SENTENCE_CHARACTERS = 4096  # longer lines are cut before a tokenizer is trained on them
UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # decodes from bytes that are not yet a character


class Tokenizer:
    """A SentencePiece model: text to token ids and back."""

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
        """The sha256 of the model: the identity of the tokenizer."""
        self.vocab_size: int = self._processor.vocab_size()
        self.bos_id: int = self._processor.bos_id()
        """The start token; -1 if the model has no start token."""
        self.eos_id: int = self._processor.eos_id()

    def encode(self, text: str) -> list[int]:
        """The tokens of a document: the start token, if the model has it, then the text."""
        return self.encode_all([text])[0]

    def encode_all(self, texts: list[str]) -> list[list[int]]:
        """The tokens of each document, computed on all cores."""
        try:
            for text in texts:
                text.encode()
        except UnicodeEncodeError:
            raise ValueError("the text is not valid UTF-8") from None
        start = [self.bos_id] if self.bos_id >= 0 else []
        return [start + ids for ids in self._processor.EncodeAsIds(texts)]

    def pieces(self) -> list[tuple[str, float]]:
        """The text of each token id, and its score: pieces of higher score are merged first."""
        processor = self._processor
        return [
            (processor.IdToPiece(number), processor.GetScore(number))
            for number in range(self.vocab_size)
        ]

    def decode(self, ids: list[int]) -> str:
        """The text of token ids; bytes that are not yet a character show as U+FFFD."""
        if ids and not 0 <= min(ids) <= max(ids) < self.vocab_size:
            wrong = min(ids) if min(ids) < 0 else max(ids)
            raise ValueError(f"token id {wrong} is outside the tokenizer's {self.vocab_size:,}")
        return self._processor.DecodeIds(ids)


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


def train_tokenizer(documents: Iterable[str], *, vocab_size: int) -> bytes:
    """Train a byte-pair SentencePiece model on documents; it can encode any text.

    Unseen characters are encoded as bytes and white space is preserved, as in the tokenizer of
    Llama 2. The vocabulary is smaller than `vocab_size` if the documents have too little text.
    """
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(line for text in documents for line in _sentences(text)),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            hard_vocab_limit=False,
            byte_fallback=True,
            character_coverage=0.9999,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            split_digits=True,
            max_sentence_length=4 * SENTENCE_CHARACTERS,
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        if "sentences_.empty()" in str(error):
            raise ValueError("there is no text to train a tokenizer on") from None
        if "vocab" in str(error).lower():
            raise ValueError(
                f"a vocabulary of {vocab_size:,} is too small for the characters of this text; "
                "give a larger vocab_size"
            ) from None
        raise ValueError(f"no tokenizer could be trained: {' '.join(str(error).split())}") from None
    return model.getvalue()


def _sentences(text: str) -> Iterator[str]:
    """Lines, long lines in parts, without NUL, which ends a string for SentencePiece."""
    for line in text.replace("\0", "").splitlines():
        for start in range(0, len(line), SENTENCE_CHARACTERS):
            yield line[start : start + SENTENCE_CHARACTERS]
