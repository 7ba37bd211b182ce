"""Draw figures in a process of their own, which cannot take results with it if it fails.

Altair makes a Vega-Lite description, and vl-convert draws it without a browser. vl-convert contains
a JavaScript engine, which ends its whole process if it does not get the memory it asks for.
"""

import base64
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mixerloop import machine
from mixerloop.parsing import one_line

if TYPE_CHECKING:
    from mixerloop.reports.figure import Figure

PNG_SCALE = 2
MOST_SECONDS = 120.0
COMMAND = (sys.executable, "-P", "-m", "mixerloop.reports.drawing")
"""The drawing process; `-P` keeps modules in the user's folder out of it."""
DRAW, RASTERISE, SCRIPT = "draw", "rasterise", "script"
Job = dict[str, Any]
"""What to do, under `do`, and the Vega-Lite description or the SVG to do it with."""


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
    specs: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    for figure in figures:
        try:
            specs[figure.name] = figure.chart().to_dict()
        except Exception as error:  # a figure that fails must not take the others with it
            problems.append(_text_of(error))
    jobs = [{"do": DRAW, "spec": spec} for spec in specs.values()]
    results, problem = _apart([*jobs, {"do": SCRIPT}] if with_script else jobs)
    drawn = {
        name: Drawn(spec=json.dumps(spec), svg=results[n]["svg"], png=_bytes(results[n]["png"]))
        for n, (name, spec) in enumerate(specs.items())
        if n in results
    }
    if problem is not None:
        problems.append(problem)
    first = problems[0] if problems else None
    return Drawings(drawn=drawn, script=results.get(len(jobs)), problem=first)


def png_of(svg: str) -> bytes:
    """An SVG picture as PNG; raises ValueError if it cannot be drawn."""
    results, problem = _apart([{"do": RASTERISE, "svg": svg}])
    if 0 not in results:
        raise ValueError(f"the picture cannot be drawn as PNG: {problem}; an .svg file can")
    return _bytes(results[0])


def _apart(jobs: Sequence[Job]) -> tuple[dict[int, Any], str | None]:
    """Do jobs in another process; their results by index, and a problem, if any."""
    try:
        process = subprocess.run(
            COMMAND,
            input=json.dumps(list(jobs)).encode(),
            capture_output=True,
            timeout=MOST_SECONDS,
            env={**os.environ, machine.PARENT: str(os.getpid())},
        )
    except subprocess.TimeoutExpired as late:
        return _received(late.stdout or b"")[0], f"not finished after {MOST_SECONDS:.0f} seconds"
    except (OSError, MemoryError) as error:
        return {}, _text_of(error)
    results, problem = _received(process.stdout)
    return results, problem or _ending(process.returncode, process.stderr)


def _received(stream: bytes) -> tuple[dict[int, Any], str | None]:
    """The results in the output of the drawing process, and the first error of a job.

    Each line is a result; the last line may be cut off.
    """
    results: dict[int, Any] = {}
    problem = None
    for line in stream.splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break
        index, result, error = json.loads(line)
        if error is None:
            results[index] = result
        else:
            problem = problem or error
    return results, problem


def _ending(code: int, stderr: bytes) -> str | None:
    if code == 0:
        return None
    lines = stderr.decode(errors="replace").strip().splitlines()
    if code < 0:
        return f"the drawing process was ended by {signal.Signals(-code).name}"
    return lines[-1] if lines else f"the drawing process ended with exit code {code}"


def _text_of(error: Exception) -> str:
    return one_line(error) or type(error).__name__


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


# --- in the drawing process ----------------------------------------------------------------------


def _done(job: Job) -> Any:
    """The result of a job, as JSON has it; pictures are base64."""
    import vl_convert

    if job["do"] == SCRIPT:
        return vl_convert.javascript_bundle(vl_version=_vega_version())  # pyright: ignore
    if job["do"] == RASTERISE:
        return _png(job["svg"])
    svg = vl_convert.vegalite_to_svg(job["spec"], vl_version=_vega_version())
    return {"svg": svg, "png": _png(svg)}


def _png(svg: str) -> str:
    import vl_convert

    return base64.b64encode(vl_convert.svg_to_png(svg, scale=PNG_SCALE)).decode("ascii")


def _vega_version() -> str:
    """The version of Vega-Lite that Altair writes, in vl-convert's format."""
    import altair as alt

    major, minor, _ = alt.SCHEMA_VERSION.split(".")
    return f"{major}.{minor}"


def _do_jobs() -> None:
    """The work of the drawing process: jobs from stdin, results to stdout, one after another."""
    machine.end_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash leaves no file in the user's folder
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not be among the results
    for index, job in enumerate(json.load(sys.stdin.buffer)):
        try:
            result, error = _done(job), None
        except Exception as problem:  # a figure that fails must not take the others with it
            result, error = None, _text_of(problem)
        print(json.dumps([index, result, error]), file=out, flush=True)


if __name__ == "__main__":
    _do_jobs()
