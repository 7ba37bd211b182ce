"""A storm of SIGKILLs: each verb is killed at random moments again and again, and then finished.

Nothing that was complete before a kill may be lost, and the result must be that of an undisturbed
run, bit for bit. The moments are drawn over the working part of a verb: modules are imported before
(`signals_server`). Where a verb is finished before all kills are done, its result is compared and a
new one is begun.

python -m chaos.kills --kills 30                        # in tests/; every verb
python -m chaos.kills --kills 30 --verbs train study
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chaos.signals import Arena, judged_run
from chaos.signals_server import Server, Started
from chaos.signals_verbs import BY_NAME, Verb, differences, result_of, user_files
from mixerloop import machine, runs
from mixerloop.files import check_seal

VERBS = (
    *("prepare", "train", "train-2-ranks", "core", "transport", "study", "report", "export"),
    "import",
)


@dataclass
class Storm:
    """The kills of one verb and what they broke."""

    verb: Verb
    kills: int = 0
    results: int = 0
    """Results that were compared with the undisturbed one."""
    seconds: float = 0.0
    broken: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.verb.name}: {self.kills} kills, {self.results} results compared, "
            f"{self.seconds:.0f} s, {len(self.broken)} violations"
        )


def storm(arena: Arena, verb: Verb, *, kills: int, seed: int) -> Storm:
    """Kill a verb so many times, finish it, and compare its result."""
    begun, draws = time.monotonic(), random.Random(f"{seed}/kills/{verb.name}")
    done = Storm(verb)
    arena.undisturbed(verb)
    while done.kills < kills and not done.broken:
        _until_finished(arena, done, kills, draws)
    done.seconds = time.monotonic() - begun
    return done


def _until_finished(arena: Arena, done: Storm, kills: int, draws: random.Random) -> None:
    """Kill and resume one result of a verb until it is complete, and compare it."""
    verb, undisturbed = done.verb, arena.undisturbed(done.verb)
    with arena.place(verb) as place:
        users, complete = user_files(verb, place), _complete(verb, place)
        while done.kills < kills:
            processes = arena.start(verb, place)
            time.sleep(draws.uniform(0, undisturbed.seconds))
            ended = _kill(processes, draws)
            if ended == 0:
                break
            if ended != -signal.SIGKILL:
                last = processes[0].stderr.read_text().strip().splitlines()[-1:]
                done.broken.append(f"after kill {done.kills}: exit code {ended}: {last}")
                return
            done.kills += 1
            before, complete = complete, _complete(verb, place)
            lost = sorted(before - complete)
            problems = [f"lost {name}" for name in lost if not _is_superseded(name, complete)]
            problems += _judged_place(verb, place, undisturbed.result)
            done.broken += [f"kill {done.kills}: {problem}" for problem in problems]
            if verb.is_made_once and not _differing(verb, place, undisturbed.result):
                break
        else:
            if (problem := arena.finish(verb, place)) is not None:
                done.broken.append(f"after kill {done.kills}: cannot be finished: {problem}")
        done.results += 1
        for name in _differing(verb, place, undisturbed.result):
            done.broken.append(f"after kill {done.kills}: another result: {name}")
        for name in differences(user_files(verb, place), users):
            if name in users:
                done.broken.append(f"after kill {done.kills}: changed file of the user: {name}")


def _kill(processes: Sequence[Started], draws: random.Random) -> int:
    """Kill all processes of a verb; a study and its cells at once, or the study alone."""
    first, *others = processes
    if first.poll() is None:
        if draws.random() < 0.5:
            first.kill_group()
        else:
            first.send_signal(signal.SIGKILL)
    code = first.wait()
    for process in others:
        if code != 0:
            process.kill_group()
        process.wait()
    first.kill_group()  # whatever the process had started and Linux has not ended yet
    return code


def _complete(verb: Verb, place: Path) -> set[str]:
    """Checkpoints that are complete, and all other finished files of a result but the work in it.

    Names stand for content: a file gets its name when it is complete, and `result_of` compares the
    content in the end.
    """
    found = set()
    for made in verb.makes:
        for path in (place / made).rglob("*"):
            parts = path.relative_to(place).parts
            if any(part.endswith(".partial") or part in PASSING for part in parts):
                continue
            if path.parent.name == runs.CHECKPOINTS:
                check_seal(path)
                found.add(path.relative_to(place).as_posix())
            elif path.is_file() and runs.CHECKPOINTS not in parts:
                found.add(path.relative_to(place).as_posix())
    return found


PASSING = ("parts", "records", "preparing.json", "excluded.docs")
"""Files of unfinished work, which the finished work replaces."""


def _is_superseded(name: str, complete: set[str]) -> bool:
    """Whether a checkpoint was removed because there are newer ones."""
    folder, _, step = name.rpartition("/step-")
    if not folder:
        return False
    newer = [
        other
        for other in complete
        if other.startswith(f"{folder}/step-") and int(other.rpartition("-")[2]) > int(step)
    ]
    return len(newer) >= 1


def _judged_place(verb: Verb, place: Path, expected: dict) -> list[str]:
    output = place / verb.makes[0]
    if verb.is_atomic and output.exists():
        return [
            f"half-made output: {name}" for name in differences(result_of(verb, place), expected)
        ]
    if verb.arguments[0] == "train" and output.exists():
        return judged_run(output, killed=True)
    return []


def _differing(verb: Verb, place: Path, expected: dict) -> list[str]:
    return differences(result_of(verb, place), expected)


def main() -> None:
    """Kill every verb so many times and print what was lost."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=30, help="kills of each verb")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments")
    parser.add_argument("--verbs", nargs="*", default=VERBS)
    options = parser.parse_args()
    machine.settle()
    broken = []
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder)) as server:
        arena = Arena(Path(folder), server)
        for name in options.verbs:
            done = storm(arena, BY_NAME[name], kills=options.kills, seed=options.seed)
            print(done, *done.broken, sep="\n  ", flush=True)
            broken += done.broken
    print(f"{len(options.verbs) * options.kills} kills, {len(broken)} violations")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
