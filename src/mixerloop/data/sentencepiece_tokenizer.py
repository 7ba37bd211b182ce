"""SentencePiece tokenizers: models that are read, and models that are trained on documents.

The package is loaded when it is used: `--help` does without it.
"""

import hashlib
import io
from collections.abc import Iterable, Iterator
from pathlib import Path

from mixerloop import runs
from mixerloop.data.tokenizer import Tokenizer
from mixerloop.files import read_file

SENTENCE_CHARACTERS = 4096  # longer lines are cut before a tokenizer is trained on them


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model. Its fingerprint is the sha256 of its file."""

    def __init__(self, path: Path) -> None:
        import sentencepiece

        model = read_file(path)
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            loaded = bool(model) and self._processor.LoadFromSerializedProto(model)
        except RuntimeError:
            loaded = False
        if not loaded:
            raise ValueError(f"{path}: not a SentencePiece model")
        self.files = {runs.SENTENCEPIECE_MODEL: model}
        self.fingerprint = hashlib.sha256(model).hexdigest()
        self.vocab_size = self._processor.vocab_size()
        self.bos_id = self._processor.bos_id()
        self.eos_id = self._processor.eos_id()

    def pieces(self) -> list[tuple[str, float]]:
        """The text of each token id, and its score: pieces of higher score are merged first."""
        processor = self._processor
        return [
            (processor.IdToPiece(number), processor.GetScore(number))
            for number in range(self.vocab_size)
        ]

    def _encoded(self, texts: list[str]) -> list[list[int]]:
        return self._processor.EncodeAsIds(texts)

    def _decoded(self, ids: list[int]) -> str:
        return self._processor.DecodeIds(ids)


def train_tokenizer(documents: Iterable[str], *, vocab_size: int) -> bytes:
    """Train a byte-pair SentencePiece model on documents; it can encode any text.

    Unseen characters are encoded as bytes and white space is preserved, as in the tokenizer of
    Llama 2. The vocabulary is smaller than `vocab_size` if the documents have too little text.
    """
    import sentencepiece

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
