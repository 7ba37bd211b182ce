"""A prepared folder of tokens, as training and measurements read it."""

from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import numpy as np

from mixerloop.data import shards
from mixerloop.data.held_out import HeldOutText, held_out_text
from mixerloop.data.shards import TokenSplit, fingerprint, read_manifest, tokenizer_of
from mixerloop.data.sources import Split
from mixerloop.data.tokenizer import Tokenizer
from mixerloop.data.vocabulary import Vocabulary
from mixerloop.data.windows import (
    Draw,
    DrawnWindows,
    TokenWindows,
    check_samples,
    spread_positions,
)
from mixerloop.files import SealedFile
from mixerloop.parsing import checked, one_of


class TokenFolder:
    """The tokens of a text as prepared data; fits `Prepared`."""

    context = None
    task = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = read_manifest(folder)

    @property
    def fingerprint(self) -> str:
        """The sha256 of the manifest."""
        return fingerprint(self.folder)

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self.manifest.vocab_size

    @property
    def vocabulary(self) -> Vocabulary:
        """What the token ids mean: the pieces of the tokenizer."""
        return Vocabulary(num_ids=self.vocab_size, tokenizer_sha256=self.manifest.tokenizer_sha256)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the tokens; raises if the folder has another."""
        return tokenizer_of(self.folder, self.manifest)

    def vocabulary_files(self) -> Mapping[str, bytes]:
        """The files of the tokenizer; raises if the folder has another tokenizer."""
        return self.tokenizer().files

    def sealed_files(self) -> tuple[SealedFile, ...]:
        """The shards of both splits."""
        return tuple(
            file
            for split in get_args(Split)
            for shard in self.manifest.shards(split)
            for file in (
                shard.tokens_file(self.folder, self.manifest.dtype),
                shard.docs_file(self.folder),
            )
        )

    @checked
    def windows(self, split: Split, context: int | None) -> TokenWindows:
        """The whole windows of a split; the caller checks `sealed_files`, before or meanwhile."""
        one_of(Split, split, "split")
        tokens = TokenSplit(self.folder, split, hashes_shards=False)
        return TokenWindows(tokens, self._checked(context))

    @checked
    def held_out(self, context: int | None) -> HeldOutText:
        """Every held-out token but the first."""
        split = TokenSplit(self.folder, "held_out")
        return held_out_text(split, self.tokenizer(), context=self._checked(context))

    @checked
    def draw(self, draw: Draw, *, context: int) -> DrawnWindows:
        """Held-out windows; predictions are read at positions spread over their second half."""
        positions = spread_positions(context, draw.num_positions)
        split = TokenSplit(self.folder, "held_out")
        indices = draw.indices(
            len(split) // context, of=f"{self.folder}: windows with a context of {context:,}"
        )
        windows = TokenWindows(split, context)
        tokens = [windows.row(int(index))[:context] for index in indices]
        return DrawnWindows(np.stack(tokens), positions)

    def samples(self, num: int, *, characters: int) -> dict[Split, list[str]]:
        """The beginnings of documents spread over each split, decoded."""
        check_samples(num, characters)
        tokenizer = self.tokenizer()
        samples: dict[Split, list[str]] = {}
        for split in get_args(Split):
            tokens = TokenSplit(self.folder, split)
            starts = tokens.document_starts()
            ends = np.append(starts[1:], len(tokens))
            last = len(starts) - 1
            num_shown = min(num, len(starts))
            chosen = np.unique(np.linspace(0, last, num_shown).astype(int))
            samples[split] = []
            for index in chosen:
                start = int(starts[index])
                stop = min(int(ends[index]), start + characters)
                text = tokenizer.decode(tokens.read(start, stop).tolist())
                samples[split].append(text[:characters])
        return samples

    def summary(self) -> dict[str, object]:
        """The counts of the manifest."""
        manifest = self.manifest
        return {
            "folder": str(self.folder),
            "source": manifest.source["kind"],
            "vocab_size": manifest.vocab_size,
            "tokenizer_sha256": manifest.tokenizer_sha256,
            "skipped": manifest.skipped,
            **{
                split: {
                    "tokens": sum(shard.tokens for shard in manifest.shards(split)),
                    "documents": sum(shard.documents for shard in manifest.shards(split)),
                    "text_bytes": sum(shard.text_bytes for shard in manifest.shards(split)),
                    "shards": len(manifest.shards(split)),
                }
                for split in get_args(Split)
            },
        }

    def counts(self) -> list[str]:
        """The source and its vocabulary, the size of each split, and the skipped documents."""
        manifest = self.manifest
        source = manifest.source["kind"]
        lines = [f"{self.folder}: {source}, vocabulary {manifest.vocab_size:,}"]
        for split in get_args(Split):
            shards_ = manifest.shards(split)
            tokens = sum(shard.tokens for shard in shards_)
            documents = sum(shard.documents for shard in shards_)
            text_bytes = sum(shard.text_bytes for shard in shards_)
            ratio = f", {text_bytes / tokens:.2f} bytes per token" if tokens else ""
            lines.append(f"  {split:8} {tokens:>14,} tokens in {documents:,} documents{ratio}")
        if (size := manifest.source.get("block_characters")) is not None:
            lines.append(
                f"  few documents: those from {2 * size:,} characters on were cut into blocks, and "
                f"{self._held_out_share():.1%} of the text is held out"
            )
        lines += [
            f"  left out: {count:,} {reason.replace('_', ' ')}"
            for reason, count in manifest.skipped.items()
            if count
        ]
        return lines

    def _held_out_share(self) -> float:
        """The share of the text, in bytes, that is held out."""
        manifest = self.manifest
        held_out = sum(shard.text_bytes for shard in manifest.held_out)
        return held_out / (held_out + sum(shard.text_bytes for shard in manifest.train))

    def verify(self) -> str:
        """Hash every file again, and look for documents in both splits."""
        shards.verify(self.folder)
        return "every file is as it was written, and no document is in both splits"

    def _checked(self, context: int | None) -> int:
        if context is None:
            raise ValueError(f"{self.folder}: tokens need a context to be cut into windows of")
        return context
