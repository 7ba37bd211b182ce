"""Where documents come from: files of text, ClimbMix's parquet shards, Python's own library.

A source is a list of files in a fixed order, and a file gives its documents in a fixed order.
Preparation is therefore repeatable and can resume.
"""

import gzip
import json
import lzma
import platform
import sysconfig
import tokenize
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

Split = Literal["train", "held_out"]

CLIMBMIX_REPOSITORY = "karpathy/climbmix-400b-shuffle"
CLIMBMIX_HELD_OUT_SHARD = 6542  # the paper trains on shards 0 to 169, 10,690,433,521 tokens
PARQUET_BATCH_ROWS = 1024
NOT_LIBRARY = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


@dataclass(frozen=True)
class SourceFile:
    """A file of a source, with the name and the split of its documents."""

    path: Path
    name: str
    """The name in manifests and messages, without the folders of this machine."""
    split: Split | None = None
    """The split of all its documents; None if the hash of each document decides."""

    def documents(self) -> Iterator[str]:
        """Its documents, not yet stripped; the error for an unreadable document names its place."""
        kind = next((ending for ending in _READERS if self.path.name.endswith(ending)), None)
        if kind is None:
            raise ValueError(f"{self.path}: unknown kind of file; known: {', '.join(_READERS)}")
        for number, text in enumerate(_READERS[kind](self.path), start=1):
            try:
                text.encode()
            except UnicodeEncodeError:
                raise ValueError(
                    f"{self.path}, document {number}: holds half of a surrogate pair, not text"
                ) from None
            yield text


@dataclass(frozen=True)
class Source:
    """Documents to prepare, and the facts about them that a manifest records."""

    kind: str
    files: list[SourceFile]
    facts: dict[str, Any] = field(default_factory=dict)


# --- text files --------------------------------------------------------------------------------


def text_files(paths: list[Path], held_out_paths: list[Path]) -> Source:
    """Files, or folders with files in them; `held_out_paths` are held out whole.

    A file that is also named to be held out is not in training.
    """
    held_out = _files_in(held_out_paths, split="held_out")
    not_trained = {file.path.resolve() for file in held_out}
    train = [
        file
        for file in _files_in(paths, split="train" if held_out else None)
        if file.path.resolve() not in not_trained
    ]
    if not train:
        raise ValueError("every file is held out, so none is left to train on; name other files")
    files = [*train, *held_out]
    by_name: dict[str, Path] = {}
    for file in files:
        if (first := by_name.setdefault(file.name, file.path)) is not file.path:
            raise ValueError(f"{file.path} and {first} would both be called {file.name}")
    return Source("text", files)


def _files_in(paths: list[Path], split: Split | None) -> list[SourceFile]:
    files: list[SourceFile] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.is_file() and p.name.endswith(KINDS))
            if not inside:
                raise ValueError(f"{path}: no file in it ends in {', '.join(KINDS)}")
            root = path.resolve().parent
            files.extend(SourceFile(p, _name(p.resolve(), root), split) for p in inside)
        elif path.is_file():
            files.append(SourceFile(path, path.name, split))
        else:
            raise ValueError(f"{path}: there is no such file or folder")
    return files


def _name(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name


# --- ClimbMix ----------------------------------------------------------------------------------


def climbmix(shards: range, folder: Path | None) -> Source:
    """The paper's corpus: training shards and the held-out shard, downloaded or in a folder."""
    if CLIMBMIX_HELD_OUT_SHARD in shards or shards.stop > CLIMBMIX_HELD_OUT_SHARD:
        last = CLIMBMIX_HELD_OUT_SHARD - 1
        raise ValueError(f"training shards are 0 to {last}; {last + 1} is held out")
    wanted: list[tuple[int, Split]] = [(number, "train") for number in shards]
    wanted.append((CLIMBMIX_HELD_OUT_SHARD, "held_out"))
    files = []
    for number, split in wanted:
        name = f"shard_{number:05d}.parquet"
        path = _downloaded(name) if folder is None else folder / name
        if not path.is_file():
            raise ValueError(
                f"{path}: missing; the folder must hold the shards under their own names"
            )
        files.append(SourceFile(path, name, split))
    return Source("climbmix", files, {"repository": CLIMBMIX_REPOSITORY})


def _downloaded(name: str) -> Path:
    """Download a shard, unless it was downloaded before."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(CLIMBMIX_REPOSITORY, name, repo_type="dataset"))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{name}: cannot be downloaded from {CLIMBMIX_REPOSITORY} ({reason}); "
            "name a folder that holds it: --from, or source in Python"
        ) from None


# --- Python's standard library -----------------------------------------------------------------


def standard_library() -> Source:
    """The .py files of the running Python's library without its tests: text on every machine."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = sorted(
        path
        for path in root.rglob("*.py")
        if not NOT_LIBRARY & set(path.relative_to(root).parts[:-1])
    )
    files = [SourceFile(path, path.relative_to(root).as_posix()) for path in paths]
    return Source("stdlib", files, {"python": platform.python_version()})


# --- kinds of files ----------------------------------------------------------------------------


def _text_documents(path: Path) -> Iterator[str]:
    """A text file is one document."""
    content = path.read_bytes()
    try:
        yield content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 at byte {error.start}") from None


def _python_documents(path: Path) -> Iterator[str]:
    """A Python file is one document, in the encoding that it declares."""
    try:
        with tokenize.open(path) as file:
            yield file.read()
    except (SyntaxError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be decoded: {error}") from None


def _json_documents(
    opened: Callable[[Path], AbstractContextManager[Iterable[bytes]]],
) -> Callable[[Path], Iterator[str]]:
    """A reader of JSON lines: every line is an object whose `text` is a document."""

    def documents(path: Path) -> Iterator[str]:
        number = 0
        try:
            with opened(path) as file:
                for line in file:
                    number += 1
                    if not line.strip():
                        continue
                    text = json.loads(line.decode())["text"]
                    if not isinstance(text, str):
                        raise TypeError
                    yield text
        except UnicodeDecodeError:
            raise ValueError(f"{path}, line {number}: not UTF-8") from None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: not JSON: {error}") from None
        except (KeyError, TypeError):
            raise ValueError(f'{path}, line {number}: not an object with a "text"') from None
        except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
            raise ValueError(f"{path}, after line {number}: damaged or cut off: {error}") from None

    return documents


@contextmanager
def _open_zst(path: Path) -> Iterator[Iterable[bytes]]:
    with path.open("rb") as file:
        yield _zst_lines(file)


def _zst_lines(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of all frames; zstandard's own reader would take a cut-off frame for the end."""
    import zstandard

    frame, rest = zstandard.ZstdDecompressor().decompressobj(), b""
    while block := file.read(2**20):
        while block:
            if frame.eof:
                frame = zstandard.ZstdDecompressor().decompressobj()
            try:
                *lines, rest = (rest + frame.decompress(block)).split(b"\n")
            except zstandard.ZstdError as error:
                raise OSError(str(error)) from None
            yield from lines
            block = frame.unused_data
    if not frame.eof:
        raise EOFError("the last frame is not complete")
    yield rest


def _parquet_documents(path: Path) -> Iterator[str]:
    """Every row of the column `text` is a document; read one row group at a time."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            if "text" not in schema.names:
                raise ValueError(f"{path}: has no column called text")
            if str(schema.field("text").type) not in ("string", "large_string", "string_view"):
                raise ValueError(f"{path}: its column text holds {schema.field('text').type}")
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(PARQUET_BATCH_ROWS, [group], columns=["text"]):
                    for text in batch.column(0).to_pylist():
                        yield text or ""
    except UnicodeDecodeError:
        raise ValueError(f"{path}: its column text is not UTF-8") from None
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path}: not a readable parquet file: {error}") from None


_READERS: dict[str, Callable[[Path], Iterator[str]]] = {
    ".txt": _text_documents,
    ".jsonl": _json_documents(lambda path: path.open("rb")),
    ".jsonl.xz": _json_documents(lzma.open),
    ".jsonl.gz": _json_documents(gzip.open),
    ".jsonl.zst": _json_documents(_open_zst),
    ".parquet": _parquet_documents,
    ".py": _python_documents,
}
KINDS = tuple(kind for kind in _READERS if kind != ".py")
"""Endings of the files that a folder is searched for."""
