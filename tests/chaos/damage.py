"""The ways in which a file is damaged; the place inside the file is drawn from a seed."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

MOVED = "moved"
"""The folder that holds the content of a file that was replaced by a link."""

Damage = Callable[[Path, Path, random.Random], list[Path]]
"""Damages a file of a test folder; returns all files that are no longer what they were."""


def _truncate(file: Path, box: Path, draw: random.Random) -> list[Path]:
    content = file.read_bytes()
    file.write_bytes(content[: draw.randrange(len(content))])
    return [file]


def _empty(file: Path, box: Path, draw: random.Random) -> list[Path]:
    file.write_bytes(b"")
    return [file]


def _delete(file: Path, box: Path, draw: random.Random) -> list[Path]:
    file.unlink()
    return [file]


def _flip(file: Path, box: Path, draw: random.Random) -> list[Path]:
    content = bytearray(file.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    file.write_bytes(content)
    return [file]


def _swap(file: Path, box: Path, draw: random.Random) -> list[Path]:
    other = draw.choice(siblings(file, box))
    content = file.read_bytes()
    file.write_bytes(other.read_bytes())
    other.write_bytes(content)
    return [file, other]


def _folder(file: Path, box: Path, draw: random.Random) -> list[Path]:
    file.unlink()
    file.mkdir()
    return [file]


def _link_to_moved(file: Path, box: Path, draw: random.Random) -> list[Path]:
    (box / MOVED).mkdir()
    target = box / MOVED / file.name
    shutil.move(file, target)
    file.symlink_to(target)
    return [file, target]


def _dangling_link(file: Path, box: Path, draw: random.Random) -> list[Path]:
    file.unlink()
    file.symlink_to(box / MOVED / file.name)
    return [file]


def _looping_link(file: Path, box: Path, draw: random.Random) -> list[Path]:
    file.unlink()
    file.symlink_to(file.name)
    return [file]


def _unreadable(file: Path, box: Path, draw: random.Random) -> list[Path]:
    file.chmod(0)
    return [file]


def _fifo(file: Path, box: Path, draw: random.Random) -> list[Path]:
    file.unlink()
    os.mkfifo(file)
    return [file]


UNREADABLE = "unreadable"
DAMAGES: dict[str, Damage] = {
    "truncate": _truncate,
    "empty": _empty,
    "delete": _delete,
    "flip": _flip,
    "swap": _swap,
    "folder": _folder,
    "link": _link_to_moved,
    "dangling": _dangling_link,
    "loop": _looping_link,
    "fifo": _fifo,
    UNREADABLE: _unreadable,
}
NEED_CONTENT = {"truncate", "empty", "flip"}


def siblings(file: Path, box: Path) -> list[Path]:
    """Other files of the same folder with other content; of the whole tree if there are none."""
    content = file.read_bytes()
    top = box / file.relative_to(box).parts[0]
    for found in (file.parent.iterdir(), top.rglob("*")):
        others = sorted(
            path
            for path in found
            if path.is_file() and path != file and path.read_bytes() != content
        )
        if others:
            return others
    return []


def is_possible(damage: str, file: Path, box: Path) -> bool:
    """Whether the damage changes this file at all."""
    if damage in NEED_CONTENT:
        return file.stat().st_size > 0
    return damage != "swap" or bool(siblings(file, box))
