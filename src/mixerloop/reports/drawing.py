"""Draw figures in a process of their own, which cannot take results with it if it fails.

Altair makes a Vega-Lite description, and vl-convert draws it without a browser. vl-convert contains
a JavaScript engine, which ends its whole process if it does not get the memory it asks for.
"""

import io
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from mixerloop import machine
from mixerloop.parsing import one_line

if TYPE_CHECKING:
    import altair as alt

    from mixerloop.reports.figure import Figure

PNG_SCALE = 2
MOST_SECONDS = 120.0
MODULE = "mixerloop.reports.drawing"


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A drawn figure."""

    spec: str
    """The Vega-Lite description as JSON, which includes the numbers."""
    svg: str
    png: bytes


@dataclass(frozen=True, kw_only=True)
class Drawings:
    """The figures that could be drawn."""

    drawn: Mapping[str, Drawn]
    """By the name of the figure."""
    script: str | None = None
    """The JavaScript that draws descriptions in a page; None if it was not asked for or failed."""
    problem: str | None = None
    """Why something is missing; None if nothing is."""


def draw_figures(figures: Sequence["Figure"], *, with_script: bool = False) -> Drawings:
    """Draw figures and, for a page, also make the script; never raises because of the drawing."""
    jobs: list[Callable[[], Any]] = [partial(_drawn, figure.chart) for figure in figures]
    results, problem = _apart([*jobs, _script] if with_script else jobs)
    drawn = {figure.name: results[n] for n, figure in enumerate(figures) if n in results}
    return Drawings(drawn=drawn, script=results.get(len(jobs)), problem=problem)


def png_of(svg: str) -> bytes:
    """An SVG picture as PNG; raises ValueError if it cannot be drawn."""
    results, problem = _apart([partial(_png, svg)])
    if 0 not in results:
        raise ValueError(f"the picture cannot be drawn as PNG: {problem}; an .svg file can")
    return results[0]


def _apart(jobs: Sequence[Callable[[], Any]]) -> tuple[dict[int, Any], str | None]:
    """Call functions in another process; their results by index, and a problem, if any."""
    own = {machine.PARENT: str(os.getpid())}
    try:
        process = subprocess.run(
            [sys.executable, "-P", "-m", MODULE],
            input=pickle.dumps(sys.path) + pickle.dumps(list(jobs)),
            capture_output=True,
            timeout=MOST_SECONDS,
            env={**os.environ, **own},
        )
    except subprocess.TimeoutExpired as late:
        return _received(late.stdout or b"")[0], f"not finished after {MOST_SECONDS:.0f} seconds"
    except (OSError, MemoryError) as error:
        return {}, one_line(error) or type(error).__name__
    results, problem = _received(process.stdout)
    return results, problem or _ending(process.returncode, process.stderr)


def _received(stream: bytes) -> tuple[dict[int, Any], str | None]:
    """The results in the output of the drawing process, and the first error of a job."""
    results: dict[int, Any] = {}
    problem = None
    file = io.BytesIO(stream)
    while True:
        try:
            index, result, error = pickle.load(file)  # noqa: S301  (of our own process)
        except (EOFError, pickle.UnpicklingError):
            return results, problem
        if error is None:
            results[index] = result
        else:
            problem = problem or error


def _ending(code: int, stderr: bytes) -> str | None:
    if code == 0:
        return None
    lines = stderr.decode(errors="replace").strip().splitlines()
    if code < 0:
        return f"the drawing process was ended by {signal.Signals(-code).name}"
    return lines[-1] if lines else f"the drawing process ended with exit code {code}"


def _drawn(make_chart: "Callable[[], alt.TopLevelMixin]") -> Drawn:
    import vl_convert

    spec = make_chart().to_dict()
    svg = vl_convert.vegalite_to_svg(spec, vl_version=_vega_version())
    return Drawn(spec=json.dumps(spec), svg=svg, png=_png(svg))


def _script() -> str:
    import vl_convert

    return vl_convert.javascript_bundle(vl_version=_vega_version())  # pyright: ignore


def _png(svg: str) -> bytes:
    import vl_convert

    return vl_convert.svg_to_png(svg, scale=PNG_SCALE)


def _vega_version() -> str:
    """The version of Vega-Lite that Altair writes, in vl-convert's format."""
    import altair as alt

    major, minor, _ = alt.SCHEMA_VERSION.split(".")
    return f"{major}.{minor}"


def _call_jobs() -> None:
    """The work of the drawing process: jobs from stdin, results to stdout, one after another."""
    machine.end_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash leaves no file in the user's folder
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not be among the results
    sys.path[:] = pickle.load(sys.stdin.buffer)  # noqa: S301
    for index, job in enumerate(pickle.load(sys.stdin.buffer)):  # noqa: S301
        try:
            result, error = job(), None
        except Exception as problem:  # a figure that fails must not take the others with it
            result, error = None, one_line(problem) or type(problem).__name__
        pickle.dump((index, result, error), out)
        out.flush()


if __name__ == "__main__":
    _call_jobs()
