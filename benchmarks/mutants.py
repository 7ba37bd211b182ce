"""How many changed operators, constants and conditions the tests notice.

    make setup
    .venv/bin/python benchmarks/mutants.py map  # `make test`, and which test runs which line
    .venv/bin/python benchmarks/mutants.py run  # a sample of mutants: half an hour on two cores
    .venv/bin/python benchmarks/mutants.py run --only mutants.json  # those that survived before

A mutant is one change of one module. Two processes collect the tests once. For each mutant a
process writes the changed module to a copy of the repository, forks, exchanges the code of the
changed function in the child, and runs the tests that reach the changed line, quick tests first,
until a test fails. Tests that start processes read the changed file.

Tests of commands are left out. A mutant survives if no test fails within `--seconds` of processor
time. The map does not see lines that a test reaches in a child process, so such a test kills no
mutant here.
"""

import argparse
import ast
import gc
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any
from xml.etree import ElementTree

import pytest
from coverage import CoverageData

ROOT = Path(__file__).parents[1]
FAST = "not slow and not nightly"  # the tests of `make test`
TIERS = ("tests/unit", "tests/property", "tests/parity", "tests/golden")  # no processes, no verbs
MODULES = (
    "schedule.py",
    "notation.py",
    "model/walk.py",
    "model/looped_lm.py",
    "evaluation/difference.py",
    "evaluation/core/scores.py",
    "data/held_out.py",
    "data/shards.py",
    "data/batches.py",
    "training/trainer.py",
    "transport/trajectories.py",
    "ops/rule_call.py",
)
SWAPS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
    ast.BitOr: ("|", "&"),
    ast.BitAnd: ("&", "|"),
}
OPPOSITES = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "sum": "max",
    "sqrt": "abs",
    "zeros": "ones",
    "append": "extend",
    "amin": "amax",
    "floor": "ceil",
    "ceil": "floor",
}


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One change of a module: a span of its text, and what stands there instead."""

    module: str
    function: str
    line: int
    start: int
    end: int
    before: str
    after: str

    def applied(self, source: bytes) -> bytes:
        """The changed text; it has as many lines as the original."""
        old = self.before.encode()
        assert source[self.start : self.end] == old, self
        new = self.after.encode()
        return source[: self.start] + new + source[self.end :]


class _Finder(ast.NodeVisitor):
    """Collects the changes that a module allows inside its functions."""

    def __init__(self, module: str, source: str) -> None:
        self.module, self.source = module, source.encode()
        self.starts = [0]
        for line in source.encode().splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.scope: list[str] = []
        self.depth = 0
        self.mutants: list[Mutant] = []

    def _offset(self, line: int, column: int) -> int:
        return self.starts[line - 1] + column

    def _add(self, node: Any, start: int, end: int, after: str) -> None:
        before = self.source[start:end].decode()
        if self.depth and before != after and before.count("\n") == after.count("\n"):
            line = self.source.count(b"\n", 0, start) + 1
            self.mutants.append(
                Mutant(
                    module=self.module,
                    function=".".join(self.scope),
                    line=line,
                    start=start,
                    end=end,
                    before=before,
                    after=after,
                )
            )

    def _span(self, node: Any) -> tuple[int, int]:
        return (
            self._offset(node.lineno, node.col_offset),
            self._offset(node.end_lineno, node.end_col_offset),
        )

    def _between(self, left: Any, right: Any, swap: tuple[str, str]) -> None:
        start, end = self._span(left)[1], self._span(right)[0]
        text = self.source[start:end].decode()
        at = text.find(swap[0])
        if at >= 0:
            self._add(left, start + at, start + at + len(swap[0].encode()), swap[1])

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Only the body: annotations and defaults are read once, when the module is imported."""
        self.scope.append(node.name)
        self.depth += 1
        for statement in node.body:
            self.visit(statement)
        self.depth -= 1
        self.scope.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Only methods."""
        self.scope.append(node.name)
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                self.visit(statement)
        self.scope.pop()

    def visit_Expr(self, node: ast.Expr) -> None:
        """A call whose result nobody reads can be left out; a docstring stays."""
        if isinstance(node.value, ast.Constant):
            return
        if isinstance(node.value, ast.Call):
            start, end = self._span(node)
            lines = self.source[start:end].decode().count("\n")
            self._add(node, start, end, "(" + "\n" * lines + ")")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        """The words of an error are not a computation."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Only the value."""
        if node.value is not None:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Positions inside a formatted string are not those of the file before Python 3.12."""

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in SWAPS:
            self._between(node.left, node.right, SWAPS[type(node.op)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between(left, right, SWAPS[type(node.op)])
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, operator, right in zip(
            [node.left, *node.comparators], node.ops, node.comparators, strict=False
        ):
            self._between(left, right, SWAPS[type(operator)])
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        start, _ = self._span(node)
        operand, _ = self._span(node.operand)
        self._add(node, start, operand, "")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        start, end = self._span(node)
        match node.value:
            case bool():
                self._add(node, start, end, str(not node.value))
            case int():
                self._add(node, start, end, str(node.value + 1))
            case float():
                self._add(node, start, end, repr(node.value * 2 + (node.value == 0)))

    def _negated(self, test: ast.expr) -> None:
        start, end = self._span(test)
        text = self.source[start:end].decode()
        self._add(test, start, end, f"(not ({text}))")

    def visit_If(self, node: ast.If) -> None:
        self._negated(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self._negated(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negated(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._negated(test)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else None
        name = node.func.id if isinstance(node.func, ast.Name) else name
        if name in OPPOSITES:
            _, end = self._span(node.func)
            self._add(node, end - len(name.encode()), end, OPPOSITES[name])
        if len(node.args) >= 2 and not any(isinstance(a, ast.Starred) for a in node.args):
            first, second = self._span(node.args[0]), self._span(node.args[1])
            swapped = b"".join(
                (
                    self.source[slice(*second)],
                    self.source[first[1] : second[0]],
                    self.source[slice(*first)],
                )
            )
            self._add(node, first[0], second[1], swapped.decode())
        self.generic_visit(node)

    def visit_Break(self, node: ast.Break) -> None:
        self._add(node, *self._span(node), "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._add(node, *self._span(node), "break")


def sample(root: Path, number: int, seed: int) -> list[Mutant]:
    """As many mutants of each module, or all that a module has."""
    generator = random.Random(seed)  # noqa: S311
    found = []
    for module in MODULES:
        source = (root / "src/mixerloop" / module).read_text()
        finder = _Finder(module, source)
        finder.visit(ast.parse(source))
        unique = {(m.start, m.end, m.after): m for m in finder.mutants}
        possible = [unique[key] for key in sorted(unique)]
        for mutant in possible:
            ast.parse(mutant.applied(source.encode()))  # each is a program
        found.append((module, possible))
    chosen: list[Mutant] = []
    for number_left, (_, possible) in zip(
        range(len(found), 0, -1), sorted(found, key=lambda pair: len(pair[1])), strict=True
    ):
        share = (number - len(chosen)) // number_left
        chosen += generator.sample(possible, min(share, len(possible)))
    return sorted(chosen, key=lambda m: (MODULES.index(m.module), m.start, m.after))


# --- in the process that runs the tests


class Runner:
    """A pytest plugin: instead of running the tests once, run them for each mutant in a child."""

    def __init__(self, work: dict[str, Any], out: Path, root: Path, seconds: float) -> None:
        self.mutants = [Mutant(**mutant) for mutant in work["mutants"]]
        self.reached: list[dict[str, list[str]]] = work["tests"]
        self.times: dict[str, float] = work["times"]
        self.out, self.root, self.seconds = out, root, seconds
        self.sound: dict[str, bool] = {}
        """Whether a test that killed a mutant passes without one, here."""

    def pytest_runtestloop(self, session: Any) -> bool:
        """Take the place of pytest's own loop."""
        by_name = {item.nodeid: item for item in session.items}
        users = defaultdict(set)  # of fixtures that several tests share
        for item in session.items:
            for fixture in _shared(item):
                users[fixture].add(item.nodeid)
        with self.out.open("a") as lines:
            for mutant, phases in zip(self.mutants, self.reached, strict=True):
                names = {name for phase in phases.values() for name in phase}
                for name in phases.get("shared", ()):
                    if name in by_name:
                        names.update(*(users[fixture] for fixture in _shared(by_name[name])))
                started = time.monotonic()
                ran = by_name.keys() & self.times.keys()
                items = sorted(
                    (by_name[name] for name in names if name in ran),
                    key=lambda item: (self.times[item.nodeid], item.nodeid),
                )
                verdict, killer = self._judge(mutant, items, session)
                row = {
                    **asdict(mutant),
                    "verdict": verdict,
                    "killer": killer,
                    "num_tests": len(names),
                    "seconds": round(time.monotonic() - started, 1),
                }
                lines.write(json.dumps(row) + "\n")
                lines.flush()
        return True

    def _judge(self, mutant: Mutant, items: list[Any], session: Any) -> tuple[str, str | None]:
        while items := [item for item in items if self.sound.get(item.nodeid, True)]:
            verdict, killer = self._run(mutant, items, session)
            by_name = {item.nodeid: item for item in items}
            if killer is None or killer not in by_name or killer in self.sound:
                return verdict, killer
            unchanged, _ = self._run(
                replace(mutant, after=mutant.before), [by_name[killer]], session
            )
            self.sound[killer] = unchanged == "survived"
            if self.sound[killer]:
                return verdict, killer
        return "unreached", None

    def _run(self, mutant: Mutant, items: list[Any], session: Any) -> tuple[str, str | None]:
        path = self.root / "src/mixerloop" / mutant.module
        original = path.read_bytes()
        changed = mutant.applied(original)
        path.write_bytes(changed)
        try:
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(reader)
                os.setsid()
                limit = int(2 * self.seconds) + 30
                resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
                self._child(mutant, changed, path, items, session, writer)
            os.close(writer)
            return self._wait(child, reader)
        finally:
            path.write_bytes(original)

    def _wait(self, child: int, reader: int) -> tuple[str, str | None]:
        deadline = time.monotonic() + 5 * self.seconds + 60  # beside other programs
        while time.monotonic() < deadline:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                with os.fdopen(reader) as said:
                    killer = said.read() or None
                _end_group(child)
                code = os.waitstatus_to_exitcode(status)
                if code == 0:
                    return "survived", None
                return "killed", killer or f"code {code}"
            time.sleep(0.05)
        _end_group(child)
        os.waitpid(child, 0)
        with os.fdopen(reader) as said:
            return "killed", said.read() or "time"

    def _child(
        self, mutant: Mutant, changed: bytes, path: Path, items: list[Any], session: Any, out: int
    ) -> None:
        code = 99
        try:
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (1, 2):
                os.dup2(null, descriptor)
            if mutant.after != mutant.before:
                exchange_code(mutant, changed, path)
            factory = session.config._tmp_path_factory
            factory._basetemp = None
            factory._given_basetemp = path.parents[3] / f"tmp-{os.getpid()}"
            stop = _StopAtFailure()
            session.config.pluginmanager.register(stop)
            for item, following in zip(items, [*items[1:], None], strict=True):
                used = os.times()
                if used.user + used.system + used.children_user > self.seconds:
                    break
                os.environ["MUTANT_TEST"] = item.nodeid
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if stop.failed:
                    os.write(out, stop.failed.encode())
                    break
            code = 1 if stop.failed else 0
        except BaseException as error:
            os.write(out, f"{os.environ.get('MUTANT_TEST')}: {error!r}".encode()[:300])
        finally:
            shutil.rmtree(path.parents[3] / f"tmp-{os.getpid()}", ignore_errors=True)
            os._exit(code)


def _shared(item: Any) -> list[Any]:
    """Fixtures that are set up once for several tests."""
    definitions = item._fixtureinfo.name2fixturedefs.values()
    return [last for *_, last in definitions if last.scope != "function"]


class _StopAtFailure:
    def __init__(self) -> None:
        self.failed: str | None = None

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Remember a failure of a test or of its fixtures."""
        if report.failed:
            self.failed = report.nodeid


def exchange_code(mutant: Mutant, changed: bytes, path: Path) -> None:
    """Give the functions of a loaded module the code of the changed module."""
    new = _codes(compile(changed, str(path), "exec", dont_inherit=True))
    exchanged = 0
    for function in gc.get_objects():
        if type(function) is not FunctionType:  # isinstance would ask some objects for their class
            continue
        code = function.__code__
        key = (code.co_qualname, code.co_firstlineno)
        if code.co_filename == str(path) and key in new and code != new[key]:
            function.__code__ = new[key]
            exchanged += 1
    assert exchanged, f"no function has the code of {mutant}"


def _codes(code: CodeType) -> dict[tuple[str, int], CodeType]:
    found = {(code.co_qualname, code.co_firstlineno): code}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _codes(constant)
    return found


def _end_group(child: int) -> None:
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        return


# --- in the process that the user starts


def _map(root: Path, folder: Path) -> None:
    """Run the fast tests with coverage, and keep which test ran which line."""
    folder.mkdir(parents=True, exist_ok=True)
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-n", "auto", "--dist", "worksteal", "-q"),
            *("-m", FAST, "--cov=src/mixerloop", "--cov-branch", "--cov-context=test"),
            *("--cov-report=", f"--junit-xml={folder / 'times.xml'}"),
        ],
        cwd=root,
        env={**os.environ, "COVERAGE_FILE": str(folder / "coverage")},
    )
    if ended.returncode:
        sys.exit(ended.returncode)


def _times(file: Path) -> dict[str, float]:
    """Seconds of the tests that ran; a name here is one that pytest's own report gives."""
    times = {}
    for case in ElementTree.parse(file).iter("testcase"):  # noqa: S314 - made by pytest
        if case.find("skipped") is None:
            path = case.attrib["classname"].replace(".", "/") + ".py"
            times[f"{path}::{case.attrib['name']}"] = float(case.attrib["time"])
    return times


def _reached(root: Path, file: Path, mutants: list[Mutant]) -> list[dict[str, list[str]]]:
    """Names of the tests that run the line of each mutant, by phase."""
    data = CoverageData(basename=str(file))
    data.read()
    found = []
    by_line: dict[str, dict[int, list[str]]] = {}
    for mutant in mutants:
        path = str(root / "src/mixerloop" / mutant.module)
        if path not in by_line:
            by_line[path] = data.contexts_by_lineno(path)
        phases: dict[str, list[str]] = defaultdict(list)
        lines = range(mutant.line, mutant.line + mutant.before.count("\n") + 1)
        for context in {c for line in lines for c in by_line[path].get(line, ())}:
            name, _, phase = context.rpartition("|")
            phases["shared" if phase == "setup" else "own"].append(name)
        found.append(dict(phases))
    return found


def _copy(root: Path, folder: Path) -> Path:
    """The repository once more, with an environment that imports the copy; it costs no space."""
    copy = folder / root.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    subprocess.run(["cp", "-al", str(root), str(copy)], check=True)
    for path in [
        *(copy / "src").rglob("*.py"),
        *copy.glob(".venv/lib/*/site-packages/_editable_*"),
    ]:
        text = path.read_bytes()
        path.unlink()  # the original has the same file
        path.write_bytes(text.replace(str(root).encode() + b"/", str(copy).encode() + b"/"))
    return copy


def _run(options: argparse.Namespace, root: Path, folder: Path) -> None:
    mutants = sample(root, options.sample, options.seed)
    if options.only:
        names = {
            (row["module"], row["function"], row["before"], row["after"])
            for row in json.loads(options.only.read_text())["mutants"]
            if row["verdict"] in options.verdicts
        }
        mutants = [m for m in mutants if (m.module, m.function, m.before, m.after) in names]
    reached = _reached(root, folder / "coverage", mutants)
    times = _times(folder / "times.xml")
    parts, processes = [], []
    for number in range(options.processes):
        copy = _copy(root, folder / f"copy{number}")
        out = folder / f"part{number}.jsonl"
        out.unlink(missing_ok=True)
        work = {
            "mutants": [asdict(m) for m in mutants[number :: options.processes]],
            "tests": reached[number :: options.processes],
            "times": times,
        }
        (folder / f"work{number}.json").write_text(json.dumps(work))
        command = [copy / ".venv/bin/python", copy / "benchmarks/mutants.py", "work"]
        arguments = [folder / f"work{number}.json", out, str(options.seconds)]
        log = (folder / f"log{number}").open("w")
        processes.append(subprocess.Popen([*command, *arguments], cwd=copy, stdout=log, stderr=log))
        parts.append(out)
    for process in processes:
        process.wait()
    rows = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
    assert len(rows) == len(mutants), f"see {folder}/log*"
    order = {(m.module, m.start, m.after): n for n, m in enumerate(mutants)}
    rows.sort(key=lambda row: order[row["module"], row["start"], row["after"]])
    options.out.write_text(json.dumps({"mutants": rows}, indent=1) + "\n")
    _print(rows)


def _print(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["verdict"] != "killed":
            print(f"{row['verdict']}: {row['module']}:{row['line']} {row['function']}")
            print(f"    {row['before']}  ->  {row['after']}")
    killed = Counter(row["module"] for row in rows if row["verdict"] == "killed")
    for module, number in Counter(row["module"] for row in rows).items():
        print(f"{module:32} {killed[module]:4} of {number}")
    print(f"{'all':32} {killed.total():4} of {len(rows)} killed")


def _work(file: Path, out: Path, seconds: float, root: Path) -> None:
    # The environment decides which warnings are errors, as for the tests.
    runner = Runner(json.loads(file.read_text()), out, root, seconds)
    code = pytest.main(
        [*TIERS, "-q", "-m", FAST, "-p", "no:cacheprovider", "-p", "no:xdist"], plugins=[runner]
    )
    assert code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED), code


def main() -> None:
    """Map, run, or work for a run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("map", "run", "work"))
    parser.add_argument("rest", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, default=ROOT, help="a repository with .venv")
    parser.add_argument("--sample", type=int, default=360)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", type=Path, help="run the mutants that this file says survived")
    parser.add_argument("--verdicts", nargs="+", default=["survived", "unreached"])
    parser.add_argument("--out", type=Path, default=Path("mutants.json"))
    options = parser.parse_args()
    root = options.root.resolve()
    folder = root.with_name(f"{root.name}-mutants")
    match options.what:
        case "map":
            _map(root, folder)
        case "run":
            _run(options, root, folder)
        case "work":
            file, out, seconds = options.rest
            _work(Path(file), Path(out), float(seconds), root)


if __name__ == "__main__":
    main()
