"""What may happen to a case: the undamaged result, or one line that names the damaged file.

`judge` returns every promise that a case broke. A verb may always be stopped by a damaged file:
exit code 2, one line on stderr that names the file, nothing changed or left behind. Otherwise its
output and all files must be those of the undamaged case, bit for bit after `normalised`.
"""

import base64
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chaos.cases import TIMED_FILES, Reading
from chaos.options import OptionCase, named_by
from chaos.program import Ended

VOLATILE_KEYS = (
    *("created", "command", "commit", "dirty", "seconds", "tokens_per_second", "prefill_seconds"),
    *("decode_seconds", "began", "ended", "id", "pid", "busy_cores", "gemm_flops_per_second"),
    *("checkpoint_sha256",),
)
"""Keys of JSON whose values are times, speeds, or say which process did the work. The hash of a
checkpoint is one of them, because a checkpoint holds the times of its steps."""
VOLATILE_FILES = re.compile(r"(^|/)(lock|log\.txt|timing\.jsonl|events\.out\.tfevents\.[^/]*)$")
"""Files that hold nothing but times, speeds and process ids; only their presence is compared."""
SEALED_VOLATILE = ("timing.jsonl", "position.json")
"""Files with times inside a sealed folder, whose sizes and hashes differ too."""

BUNDLE = re.compile(r'"bundle": "[0-9a-f]{64}"')
"""The sha256 of a bundle in a result of CORE."""
RESULT = re.compile(r"/results/\w+\.json$")
"""The file of a measure."""
PLAN = re.MULTILINE | re.DOTALL
STRAY = re.compile(r"\.partial$|^(tmp|home)/")
"""Paths that no verb may leave behind."""
CACHES = re.compile(r"tmp/torchinductor_\w+(/|$)")
"""Torch's own cache of compiled code, which torch makes where temporary files are."""
PROGRESS = re.compile(r"step \d+/\d+  loss|\[\d+/\d+\] \S+: |training a tokenizer$|tokenising$")
"""Progress that an undamaged case does not show, because it is shown every few seconds."""

_NUMBER_OR_WORD = r'(?:"(?:[^"\\]|\\.)*"|\[[^\]]*\]|[-+\w.]+)'
_VOLATILE = re.compile(rf'("(?:{"|".join(VOLATILE_KEYS)})": ?){_NUMBER_OR_WORD}')
_SEALED = re.compile(rf'("(?:{"|".join(map(re.escape, SEALED_VOLATILE))})": ?)\{{[^}}]*\}}')
_SEAL = re.compile(r'^(  "sha256": ")[0-9a-f]{64}', re.MULTILINE)
_TIME_STAMP = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\+00:00)?")
_TEXT_SPEED = re.compile(r"[\d,.]+ tokens/s|in [\d.]+ s\b")

State = tuple[str, bytes]
"""What a path is (file, folder or link), and the content of a file or the target of a link."""
Tree = Mapping[str, State]


@dataclass(frozen=True)
class Seen:
    """A verb's end, and the test folder before and after."""

    ended: Ended
    box: Path
    before: Tree
    after: Tree
    rewritten: frozenset[str]
    """Files that were written, with other content or with the same."""


@dataclass(frozen=True)
class Baseline:
    """The undamaged case: normalised output, the normalised files, and the paths it wrote."""

    code: int
    stdout: str
    stderr: str
    before: Tree
    """The files before, as they are."""
    after: dict[str, State]
    written: frozenset[str]

    @staticmethod
    def of(seen: Seen) -> "Baseline":
        """The baseline that an undamaged run of a verb gives."""
        after = _normal_tree(seen.after, seen.box)
        return Baseline(
            code=seen.ended.code,
            stdout=normalised(seen.ended.stdout, seen.box),
            stderr=normalised(seen.ended.stderr, seen.box),
            before=seen.before,
            after=after,
            written=frozenset(map(_normal_path, {*_changed(seen), *seen.rewritten})),
        )

    def to_json(self) -> dict[str, Any]:
        """The baseline as a JSON value, for another process."""
        trees = {"before": _encoded(self.before), "after": _encoded(self.after)}
        return {**vars(self), **trees, "written": sorted(self.written)}

    @staticmethod
    def from_json(value: dict[str, Any]) -> "Baseline":
        """The baseline that `to_json` gave."""
        trees = {name: _decoded(value[name]) for name in ("before", "after")}
        return Baseline(**{**value, **trees, "written": frozenset(value["written"])})


def _encoded(tree: Tree) -> dict[str, tuple[str, str]]:
    return {path: (kind, base64.b64encode(data).decode()) for path, (kind, data) in tree.items()}


def _decoded(tree: Mapping[str, tuple[str, str]]) -> dict[str, State]:
    return {path: (kind, base64.b64decode(text)) for path, (kind, text) in tree.items()}


def tree_of(box: Path) -> dict[str, State]:
    """Every path in a test folder, with its content."""
    return {path.relative_to(box).as_posix(): _state(path) for path in sorted(_paths(box))}


def stamps_of(box: Path) -> dict[str, tuple[int, int]]:
    """The inode and the time of change of every file, which tell whether it was written."""
    stamps = {}
    for path in _paths(box):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode):
            stamps[path.relative_to(box).as_posix()] = (status.st_ino, status.st_mtime_ns)
    return stamps


def _paths(box: Path) -> list[Path]:
    return [
        Path(folder) / name for folder, folders, files in os.walk(box) for name in folders + files
    ]


def _state(path: Path) -> State:
    if path.is_symlink():
        return "link", os.fsencode(path.readlink())
    if path.is_dir():
        return "folder", b""
    if path.is_fifo():
        return "fifo", b""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & stat.S_IRUSR:
        return "file", path.read_bytes()
    path.chmod(0o600)
    content = path.read_bytes()
    path.chmod(mode)
    return f"file {mode:o}", content


def normalised(text: str, box: Path) -> str:
    """Text without times, speeds and the path of the test folder."""
    text = text.replace(str(box), "BOX")
    plain = _TEXT_SPEED.sub("SPEED", _TIME_STAMP.sub("TIME", text))
    plain = _SEALED.sub(r"\1{}", _VOLATILE.sub(r"\1VOLATILE", plain))
    return plain if plain == text else _SEAL.sub(r"\1SEAL", plain)


def _normal_path(path: str) -> str:
    return re.sub(r"tfevents\.[1-9][^/]*$", "tfevents.NEW", path)


def _normal_tree(tree: Tree, box: Path) -> dict[str, State]:
    return {_normal_path(path): _normal_state(path, tree[path], box) for path in tree}


def _normal_state(path: str, state: State, box: Path) -> State:
    kind, content = state
    if VOLATILE_FILES.search(path) and kind == "file":
        return kind, b""
    try:
        return kind, normalised(content.decode(), box).encode()
    except UnicodeDecodeError:
        return kind, content


@dataclass(frozen=True)
class Verdict:
    """The promises that a case broke; or the rule by which another outcome is right."""

    broken: tuple[str, ...] = ()
    rule: str | None = None


LISTED = "a list shows what is damaged or missing beside the rest, and exits with 0"
MISSING = "a deleted file is named, and the result is made without it"
OTHER_CELLS = "a study names the damaged file, runs its other cells, and exits with 1"
REDONE = "a study names the state of a damaged cell in its plan, and makes the same results again"
NOT_MEASURED = "a measure whose result was deleted counts as not measured; others are shown"
OTHER_BUNDLE = "a changed bundle is another bundle, and the result has the sha256 of what was read"


def judge(reading: Reading, damaged: Sequence[str], baseline: Baseline, seen: Seen) -> Verdict:
    """What is wrong with a case; `damaged` are the paths that are not what they were."""
    broken = [
        *_died(seen.ended),
        *_left_behind(reading, seen, baseline),
        *_users_files(seen, baseline, writes=reading.writes),
    ]
    if not broken and seen.ended.code == 2:
        broken = _refused(reading, damaged, baseline, seen)
    elif not broken:
        broken = _undamaged(reading, damaged, baseline, seen)
        rule = _rule(reading, damaged, baseline, seen) if broken else None
        if rule is not None:
            return Verdict(rule=rule)
    return Verdict(tuple(broken))


def _rule(reading: Reading, damaged: Sequence[str], baseline: Baseline, seen: Seen) -> str | None:
    """The rule by which another result than the undamaged one is right."""
    is_named = _names(seen.ended.stdout + seen.ended.stderr, damaged)
    is_deleted = not any(path in seen.before for path in damaged)
    if seen.ended.code == 1 and reading.name.startswith("study"):
        is_told = is_named and "failed: " in seen.ended.stdout
        return OTHER_CELLS if is_told else None
    if seen.ended.code != 0:
        return None
    if reading.lists and (is_named or is_deleted):
        return LISTED
    if is_deleted and is_named:
        return MISSING
    if is_deleted and reading.shows_results and RESULT.search(damaged[0]):
        return NOT_MEASURED
    if reading.name.startswith("study,") and _is_redone(reading, damaged, baseline, seen):
        return REDONE
    before, now = (BUNDLE.search(text) for text in (baseline.stdout, seen.ended.stdout))
    if before and now and before[0] != now[0]:
        return OTHER_BUNDLE
    return None


def _is_redone(reading: Reading, damaged: Sequence[str], baseline: Baseline, seen: Seen) -> bool:
    """Whether only the plan, which is printed first, differs from the undamaged case."""
    stdout = _without_plan(seen.ended.stdout)
    ended = replace(seen.ended, stdout=stdout)
    expected = replace(baseline, stdout=_without_plan(baseline.stdout))
    timed = replace(reading, timed=TIMED_FILES)
    return not _undamaged(timed, damaged, expected, replace(seen, ended=ended))


def _without_plan(stdout: str) -> str:
    """What a study prints after its table of cells."""
    return re.sub(r"^cell .*?(?=^\S+: training in)|^expected: .*?\n", "", stdout, flags=PLAN)


def _died(ended: Ended) -> list[str]:
    if ended.hung is not None:
        return [f"hang: {ended.hung}"]
    if ended.code < 0:
        return [f"crash: signal {-ended.code}"]
    for text in (ended.stderr, ended.stdout):
        if "Traceback (most recent call last)" in text:
            errors = re.findall(r"^[\w.]+(?:Error|Exception|Interrupt)\b.*", text, re.MULTILINE)
            return [f"traceback: {errors[-1] if errors else text.strip()[-200:]}"]
    if ended.orphans:
        return ["leftover: a process that the verb started was still running"]
    return []


def _left_behind(reading: Reading, seen: Seen, baseline: Baseline) -> list[str]:
    """Temporary files, and new paths that the undamaged case does not make."""
    new = sorted(seen.after.keys() - seen.before.keys())
    usual = {_any_step(path) for path in baseline.after}
    strange = [
        path
        for path in new
        if _any_step(_normal_path(path)) not in usual
        and not CACHES.match(path)
        and not re.match(reading.writes, path)
    ]
    return [f"leftover: {strange[0]}"] if strange else []


def _any_step(path: str) -> str:
    """A path without the step of its checkpoint: a run that stops early keeps an earlier one."""
    return re.sub(r"/step-\d+", "/step-N", path)


def _users_files(seen: Seen, baseline: Baseline, *, writes: str = r"(?!)") -> list[str]:
    """Files that changed although the undamaged case does not write to them."""
    for path, state in seen.before.items():
        now = seen.after.get(path)
        if now == state or _normal_path(path) in baseline.written:
            continue
        if now is not None and _is_healed(path, now, baseline, seen):
            continue
        if now is not None and re.match(writes, path):
            continue
        if path.startswith("moved/") and _through_link(path, seen) in baseline.written:
            continue
        return [f"changed file: {path}: {_short(state)} -> {_short(now)}"]
    return []


def _through_link(path: str, seen: Seen) -> str | None:
    """The link whose target is this path."""
    target = str(seen.box / path).encode()
    for name, state in seen.before.items():
        if state == ("link", target):
            return name
    return None


def _is_healed(path: str, now: State, baseline: Baseline, seen: Seen) -> bool:
    return _normal_state(path, now, seen.box) == baseline.after.get(_normal_path(path))


def _short(state: State | None) -> str:
    if state is None:
        return "missing"
    kind, content = state
    return f"{kind} of {len(content)} bytes"


def _names(text: str, damaged: Sequence[str]) -> bool:
    """Whether a text names one of the damaged files; a narrow table breaks long names."""
    whole = "".join(text.split())
    return any("".join(Path(path).name.split()) in whole for path in damaged)


def _refused(reading: Reading, damaged: Sequence[str], baseline: Baseline, seen: Seen) -> list[str]:
    broken = []
    *progress, last = seen.ended.stderr.strip().splitlines() or [""]
    if not last.startswith("mixerloop: "):
        broken.append(f"error without its prefix: {last}")
    elif not _names(last, damaged):
        broken.append(f"error names no damaged file: {last}")
    if strange := _strange_lines(progress, baseline):
        broken.append(f"more than one line: {strange[0]}")
    if not reading.resumes:
        broken += [f"written before the error: {path}" for path in _changed(seen)[:1]]
    else:
        changed = [path for path in _changed(seen) if path in damaged]
        broken += [
            f"damaged file changed before the error: {path}"
            for path in changed
            if not (VOLATILE_FILES.search(path) and path in baseline.written)
        ][:1]
    return broken


def _shape(line: str) -> str:
    return re.sub(r"[\d.,]+", "N", line)


def _undamaged(
    reading: Reading, damaged: Sequence[str], baseline: Baseline, seen: Seen
) -> list[str]:
    if seen.ended.code != baseline.code:
        last = seen.ended.stderr.strip().splitlines()[-1:] or [""]
        return [f"exit code {seen.ended.code}: {last[0]}"]
    stdout = normalised(seen.ended.stdout, seen.box)
    if stdout != baseline.stdout:
        return [f"another result without an error: {_first_difference(baseline.stdout, stdout)}"]
    same = {
        path
        for path, state in baseline.before.items()
        if seen.after.get(path) == state and path not in baseline.written
    }
    before, after = (
        _normal_tree({path: tree[path] for path in tree if path not in same}, seen.box)
        for tree in (seen.before, seen.after)
    )
    for path in sorted((baseline.after.keys() | after.keys()) - same):
        now, expected = after.get(path), baseline.after.get(path)
        if now and expected and now[0] == expected[0] and re.match(reading.timed, path):
            continue
        is_damaged = path in damaged or path.startswith("moved")
        is_left_alone = path not in baseline.written and now == before.get(path)
        if now == expected or (is_damaged and is_left_alone):
            continue
        if is_damaged and _same_through_link(path, expected, after, seen):
            continue
        return [f"another file without an error: {path}: {_difference(expected, now)}"]
    return []


def _same_through_link(
    path: str, expected: State | None, after: Mapping[str, State], seen: Seen
) -> bool:
    """Whether a link leads to the expected content, or is the target of such a link."""
    if path.startswith("moved"):
        return True
    kind, target = after.get(path, ("", b""))
    prefix = f"{seen.box}/".encode()
    moved = after.get(target.removeprefix(prefix).removeprefix(b"BOX/").decode())
    return kind == "link" and moved is not None and moved[1] == (expected or ("", b""))[1]


def _difference(expected: State | None, now: State | None) -> str:
    if expected is None or now is None or expected[0] != now[0]:
        return f"{_short(expected)} -> {_short(now)}"
    before, after = (content.decode(errors="replace") for _, content in (expected, now))
    return _first_difference(before, after)


def _first_difference(expected: str, found: str) -> str:
    pairs = zip(expected.splitlines(), found.splitlines(), strict=False)
    for before, now in pairs:
        if before != now:
            return f"{before.strip()[:120]!r} -> {now.strip()[:120]!r}"
    return f"{len(expected.splitlines())} lines -> {len(found.splitlines())}"


STOPPED = "work without end is stopped by Ctrl-C, with exit code 130"


def judge_option(case: OptionCase, baseline: Baseline, seen: Seen) -> Verdict:
    """What is wrong with a verb that was given a strange value."""
    ended = seen.ended
    broken = [*_died(ended), *_strays(seen), *_users_files(seen, baseline)]
    if broken:
        return Verdict(tuple(broken))
    if case.is_endless and ended.code == 130:
        return Verdict(rule=STOPPED)
    if ended.code == 0 and ended.stdout.strip():
        return Verdict()
    if ended.code not in (1, 2):
        return Verdict((f"exit code {ended.code}, without a result",))
    *progress, last = ended.stderr.strip().splitlines() or [""]
    if not last.startswith("mixerloop: "):
        broken.append(f"error without its prefix: {last[:300]}")
    elif not named_by(case, last.removeprefix("mixerloop: ")):
        broken.append(f"error names neither the option nor its value: {last[:300]}")
    if strange := _strange_lines(progress, baseline):
        broken.append(f"more than one line: {strange[0][:300]}")
    if ended.code == 2 and not case.command.resumes and (new := _changed(seen)):
        broken.append(f"written before the error: {new[0]}")
    return Verdict(tuple(broken))


def _strays(seen: Seen) -> list[str]:
    """Temporary files, and files beside those that the user named."""
    new = sorted(seen.after.keys() - seen.before.keys())
    strays = [path for path in new if STRAY.search(path) and not CACHES.match(path)]
    return [f"leftover: {strays[0]}"] if strays else []


def _changed(seen: Seen) -> list[str]:
    """Paths that are new, changed or gone."""
    return sorted(
        path
        for path in seen.after.keys() | seen.before.keys()
        if seen.after.get(path) != seen.before.get(path)
    )


def _strange_lines(progress: Sequence[str], baseline: Baseline) -> list[str]:
    """Lines before the error that are not progress of the undamaged case."""
    told = {_shape(line) for line in baseline.stderr.splitlines()} | {""}
    return [line for line in progress if _shape(line) not in told and not PROGRESS.match(line)]
