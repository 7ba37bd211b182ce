"""A disk that fills up at generated moments of every verb that writes.

The verbs run on a small tmpfs. The undisturbed run records how much of it is in use at each file
operation. A case leaves so much free space that the write before one of these operations fails, or
a size that is drawn from the seed, or too few names for new files. Or stdout or stderr is the file
that is full.

python -m chaos.disk --seed 0 --per-verb 12             # in tests/; needs the right to mount
python -m chaos.disk --verbs train --only 7             # one case again, by its number
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from chaos.signals import UGLY, Arena, Tally, judged_rest, judged_run, wait_for_ranks
from chaos.signals_hook import Hook
from chaos.signals_server import Server
from chaos.signals_verbs import BY_NAME, VERBS, Verb, differences, leftovers, result_of, user_files
from mixerloop import machine

PAGE = os.sysconf("SC_PAGE_SIZE")
DISK_BYTES = 64 * 2**20
DISK_FILES = 100_000
FULL = Path("/dev/full")
SAYS_FULL = re.compile(r"no space left on device|disk is (too )?full", re.IGNORECASE)
WRITING = tuple(verb for verb in VERBS if verb.makes)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A verb, and how much of the disk is free when it starts."""

    verb: Verb
    pages: int | None = None
    """Free pages of the disk."""
    files: int | None = None
    """Files and folders that can still be created."""
    stream: str | None = None
    """The stream that goes to a full disk: stdout or stderr."""

    def __str__(self) -> str:
        if self.stream is not None:
            return f"{self.verb.name}: {self.stream} to {FULL}"
        left = f"{self.pages} pages" if self.files is None else f"names for {self.files} files"
        return f"{self.verb.name}: with {left} left"


class Disk:
    """A tmpfs with a file that takes up its space."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def leave(self, *, pages: int | None = None, files: int | None = None) -> None:
        """Fill the disk up to so many free pages, or limit the number of new files."""
        state = os.statvfs(self.folder)
        if files is not None:
            self._limit_files(state.f_files - state.f_ffree + files)
        if pages is not None:
            surplus = state.f_bavail - pages
            assert surplus > 0
            with self._ballast.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, surplus * PAGE)

    def clear(self) -> None:
        """Free the space again."""
        self._ballast.unlink(missing_ok=True)
        self._limit_files(DISK_FILES)

    def _limit_files(self, number: int) -> None:
        options = f"remount,size={DISK_BYTES},nr_inodes={number}"
        subprocess.run(["mount", "-o", options, str(self.folder)], check=True)


@contextmanager
def small_disk(folder: Path) -> Iterator[Disk]:
    """Mount a tmpfs on a new folder."""
    folder.mkdir()
    options = f"size={DISK_BYTES},nr_inodes={DISK_FILES}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


class DiskArena(Arena):
    """An arena whose places are on the small disk; materials and streams are not."""

    def __init__(self, folder: Path, disk: Disk, server: Server) -> None:
        super().__init__(folder, server)
        self.disk = disk
        self._profiles: dict[str, list[int]] = {}

    def new_place(self, name: str) -> Path:
        """A path on the disk."""
        return self.disk.folder / name

    def output(self, place: Path) -> Path:
        """A folder beside the disk."""
        return self.folder / f"{place.name}.output"

    def profile(self, verb: Verb) -> list[int]:
        """The pages that an undisturbed run takes at each of its file operations."""
        if verb.name not in self._profiles:
            with self.place(verb) as place:
                free = os.statvfs(place).f_bavail
                record = self.folder / f"{place.name}.events"
                hook = Hook(folder=str(place), record=str(record))
                processes = self.start(verb, place, hook=hook)
                codes = [process.wait() for process in processes]
                assert not any(codes), processes[0].stderr.read_text()
                bytes_left = [json.loads(line)[2] for line in record.read_text().splitlines()]
                record.unlink()
                bytes_left.append(os.statvfs(place).f_bavail * PAGE)
            self._profiles[verb.name] = [free - left // PAGE for left in bytes_left]
        return self._profiles[verb.name]


def cases(arena: DiskArena, verbs: Sequence[Verb], *, per_verb: int, seed: int) -> Iterator[Case]:
    """Generated cases: half just below a boundary, then drawn sizes, files and streams."""
    for verb in verbs:
        draws = random.Random(f"{seed}/{verb.name}")
        profile = arena.profile(verb)
        boundaries = sorted({pages - 1 for pages in profile if pages > 0})
        number = max(2, per_verb // verb.cost)
        chosen = draws.sample(boundaries, min(len(boundaries), number // 2))
        peak = max(profile)
        left = number - len(chosen)
        chosen += draws.sample(range(peak), min(peak, left - left // 3))
        for pages in sorted(set(chosen)):
            yield Case(verb=verb, pages=pages)
        for files in sorted(draws.sample(range(1 + peak // 4), min(1 + peak // 4, left // 3))):
            yield Case(verb=verb, files=files)
        for stream in ("stdout", "stderr")[: per_verb // verb.cost]:
            yield Case(verb=verb, stream=stream)


def violations(arena: DiskArena, case: Case) -> list[str]:
    """Run a case; returns the promises that it broke."""
    verb = case.verb
    undisturbed = arena.undisturbed(verb)
    with arena.place(verb) as place:
        before = user_files(verb, place)
        if case.stream is None:
            arena.disk.leave(pages=case.pages, files=case.files)
        streams = {} if case.stream is None else {case.stream: FULL}
        try:
            processes = arena.start(verb, place, **streams)
            code, *_ = wait_for_ranks(processes)
            broken = []
        except TimeoutError as error:
            return [f"hang: {error}"]
        finally:
            arena.disk.clear()
        if case.stream != "stderr":
            broken += _judged_end(case, code, processes[0].stderr.read_text(), undisturbed.said)
        elif code != 0:
            broken.append(f"exit code {code}: a full stderr stopped the work")
        if left := leftovers(place):
            broken.append(f"leftover: {left[0]}")
        broken += _judged_files(verb, place, undisturbed.result)
        if case.stream is None or code == 0:
            done = code == 0 and case.stream != "stdout"
            broken += judged_rest(arena, verb, place, finished=done)
        changed = differences(user_files(verb, place), before)
        broken += [f"changed file of the user: {name}" for name in changed if name in before]
    return broken


def _judged_end(case: Case, code: int, stderr: str, said: int) -> list[str]:
    """One line that names a file and the reason, and exit code 2; a study names its cells."""
    if code == 0:
        return [] if case.stream is None else ["exit code 0 with an unwritten stdout"]
    broken = [f"{word} on stderr" for word in UGLY if word in stderr]
    lines = stderr.strip().splitlines() or [""]
    if code not in (1, 2):
        broken.append(f"exit code {code}: {lines[-1]}")
    if broken:
        return broken
    telling = [line for line in lines if SAYS_FULL.search(line)]
    if not telling:
        return [f"the reason is not said: {lines[-1]}"]
    if case.verb.name != "study" and (telling[-1] != lines[-1] or len(lines) > said + 1):
        broken.append(f"more than one line: {lines[-2:]}")
    if not any(name in telling[-1] for name in _names(case)):
        broken.append(f"no file is named: {telling[-1]}")
    return broken


def _names(case: Case) -> list[str]:
    """The names of which an error must have one."""
    if case.stream is not None:
        return [case.stream]
    return [Path(name).parts[0] for name in (*case.verb.makes, *case.verb.reads)]


def _judged_files(verb: Verb, place: Path, expected: dict) -> list[str]:
    if verb.is_atomic and (place / verb.makes[0]).exists():
        differing = differences(result_of(verb, place), expected)
        return [f"half-made output: {differing[0]}"] if differing else []
    if verb.arguments[0] == "train" and (place / verb.makes[0]).exists():
        return judged_run(place / verb.makes[0], killed=True)
    return []


def main() -> None:
    """Run generated cases and print how many there were."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--per-verb", type=int, default=12)
    parser.add_argument("--verbs", nargs="*", default=[verb.name for verb in WRITING])
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    machine.settle()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # unmounts the disk, as Ctrl-C does
    with tempfile.TemporaryDirectory() as name, small_disk(Path(name) / "disk") as disk:
        folder = Path(name)
        with Server(folder) as server:
            arena, tally = DiskArena(folder, disk, server), Tally()
            for verb in (BY_NAME[name] for name in options.verbs):
                generated = cases(arena, [verb], per_verb=options.per_verb, seed=options.seed)
                tally.run(generated, lambda case: violations(arena, case), only=options.only)
                print(f"{verb.name}: so far {tally}", flush=True)
    print(tally)
    sys.exit(1 if tally.broken else 0)


if __name__ == "__main__":
    main()
