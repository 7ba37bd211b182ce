"""Folders of pretrained models: their weights under our names, and back.

Nothing is loaded twice. Tensors are mapped into memory, and a conversion writes one tensor after
another.
"""

import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mixerloop.config import ModelConfig
from mixerloop.files import naming
from mixerloop.interop.families import FAMILIES
from mixerloop.interop.families.family import Family, Piece
from mixerloop.model.initialization import meta_model

DTYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
"""The types of weights that can be read, as safetensors spells them."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}
MOST_PROBLEMS = 8  # tensors that an error names; a wrong folder may have thousands


class FileTensors:
    """The tensors of safetensors files, mapped into memory; they are read when they are used."""

    def __init__(self, opened: Mapping[Path, Any]) -> None:
        self._file_of: dict[str, Any] = {}
        for path, file in opened.items():
            for name in file.keys():  # noqa: SIM118
                if name in self._file_of:
                    raise ValueError(f"{path.name}: {name} is in another file too")
                self._file_of[name] = file

    def names(self) -> set[str]:
        """The name of each tensor."""
        return set(self._file_of)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, from the header of its file."""
        return tuple(self._file_of[name].get_slice(name).get_shape())

    def dtype(self, name: str) -> torch.dtype:
        """The type of a tensor, from the header of its file."""
        spelt = self._file_of[name].get_slice(name).get_dtype()
        if spelt not in DTYPES:
            raise ValueError(f"{name} is {spelt}; weights are {', '.join(DTYPES)}")
        return DTYPES[spelt]

    def load(self, name: str) -> Tensor:
        """A tensor whose memory is the file."""
        return self._file_of[name].get_tensor(name)


@contextmanager
def opened_files(files: list[Path]) -> Iterator[FileTensors]:
    """The tensors of some safetensors files."""
    with ExitStack() as stack:
        opened = {}
        for file in files:
            try:
                opened[file] = stack.enter_context(safe_open(file, framework="pt"))
            except (SafetensorError, OSError) as error:
                problem = f"{file.name}: not a readable safetensors file: {error}"
                raise ValueError(problem) from None
        yield FileTensors(opened)


def family_of(given: Mapping[str, Any]) -> Family | None:
    """The family of a config.json; None if its model_type is none of them."""
    kind = given.get("model_type")
    return FAMILIES.get(kind) if isinstance(kind, str) else None


def listed(problems: Sequence[str]) -> str:
    """The first problems, and how many more there are."""
    more = len(problems) - MOST_PROBLEMS
    return "; ".join([*problems[:MOST_PROBLEMS], *([f"{more} more"] if more > 0 else [])])


@dataclass(frozen=True)
class Correspondence:
    """A model of ours and the tensors of a folder that it is made of."""

    family: Family
    config: ModelConfig
    given: Mapping[str, Any]
    """The config.json."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each of our tensors."""
        model = meta_model(self.config, form="torch")
        return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}

    def pieces(self) -> dict[str, tuple[Piece, ...]]:
        """The pieces of each of our tensors."""
        return self.family.pieces(self.config, self.given)

    def check(self, tensors: FileTensors) -> list[str]:
        """Reject tensors that are missing, of another shape, or unknown; returns the unused."""
        shapes, found = self.shapes(), tensors.names()
        pieces = self.pieces()
        assert pieces.keys() == shapes.keys(), pieces.keys() ^ shapes.keys()
        problems, used = [], set()
        for ours, parts in pieces.items():
            for part in parts:
                if part.name is None:
                    continue
                used.add(part.name)
                wanted = part.shape or (part.rows, *shapes[ours][1:])
                if part.name not in found:
                    problems.append(f"missing {part.name}")
                elif (shape := tensors.shape(part.name)) != wanted:
                    problems.append(f"{part.name} has the shape {list(shape)}, not {list(wanted)}")
        if self.config.tied_head and "lm_head.weight" in found - used:
            used.add("lm_head.weight")
            embedding = pieces["embedding.weight"][0].name
            assert embedding is not None
            if embedding in found and not torch.equal(
                tensors.load("lm_head.weight"), tensors.load(embedding)
            ):
                problems.append("lm_head.weight is not the embedding, though the config ties them")
        unused = sorted(name for name in found - used if name in self.family.unused)
        problems += [f"unexpected {name}" for name in sorted(found - used - set(unused))]
        if problems:
            raise ValueError(f"its weights do not fit its config: {listed(problems)}")
        self.dtypes(tensors)  # raises for a type that is not known here
        return unused

    def all_joined(self, tensors: FileTensors) -> Iterator[tuple[str, Tensor]]:
        """Each of our tensors, one after another.

        A tensor shares the memory of theirs where it is one of theirs.
        """
        shapes = self.shapes()
        for ours, parts in self.pieces().items():
            yield ours, _joined(tensors, parts, shapes[ours])

    def dtypes(self, tensors: FileTensors) -> dict[str, torch.dtype]:
        """The type of each of our tensors: the widest of its pieces."""
        return {
            ours: reduce(
                torch.promote_types,
                [tensors.dtype(part.name) for part in parts if part.name is not None],
            )
            for ours, parts in self.pieces().items()
        }

    def write_ours(self, path: Path, tensors: FileTensors, not_finite: dict[str, int]) -> None:
        """Write a file with our tensors, in the types that theirs have; fill `not_finite`."""
        shapes = self.shapes()
        header = {name: (dtype, shapes[name]) for name, dtype in self.dtypes(tensors).items()}
        write_tensors(path, counting_not_finite(self.all_joined(tensors), not_finite), header)

    def split(self, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Their tensors from ours."""
        theirs: dict[str, Tensor] = {}
        for name, parts in self.pieces().items():
            rows = ours[name].split([part.rows for part in parts])
            for part, block in zip(parts, rows, strict=True):
                if part.name is not None:
                    shape = block.shape if part.shape is None else part.shape
                    theirs[part.name] = block.reshape(shape)
                elif bool(block.any()):
                    raise ValueError(
                        f"{name}: the last {part.rows} rows are not zero, and a "
                        f"{self.family.model_type} folder has no place for them"
                    )
        return theirs


def counting_not_finite(
    tensors: Iterable[tuple[str, Tensor]], not_finite: dict[str, int]
) -> Iterator[tuple[str, Tensor]]:
    """Pass tensors on; `not_finite` gets the number of NaN and infinite values of each, if any."""
    for name, tensor in tensors:
        finite = tensor.isfinite()
        if not finite.all():
            not_finite[name] = int((~finite).sum())
        yield name, tensor


def _joined(tensors: FileTensors, parts: tuple[Piece, ...], shape: tuple[int, ...]) -> Tensor:
    blocks = []
    for part in parts:
        of_part = (part.rows, *shape[1:])
        if part.name is None:
            blocks.append(torch.zeros(of_part, dtype=blocks[0].dtype))
        else:
            blocks.append(tensors.load(part.name).reshape(of_part))
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks)


def write_tensors(
    path: Path, tensors: Iterator[tuple[str, Tensor]], header: Mapping[str, Any]
) -> None:
    """Write a safetensors file, one tensor after another, so that no second copy is held.

    `header` has the type and shape of each tensor, in the order in which they come.
    """
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in header.items():
        begin, end = end, end + dtype.itemsize * torch.Size(shape).numel()
        entries[name] = {
            "dtype": NAMES[dtype],
            "shape": list(shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # data begins at a multiple of 8 bytes
    with naming(path), path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, tensor in tensors:
            assert (tensor.dtype, tuple(tensor.shape)) == header[name], name
            file.write(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())
