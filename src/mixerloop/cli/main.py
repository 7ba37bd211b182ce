"""Pick the verb, run it, and turn bad input into one line and exit code 2."""

import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Annotated, NoReturn

import tyro

from mixerloop import __version__, machine
from mixerloop.cli import (
    bench,
    data,
    describe,
    doctor,
    evaluate,
    export,
    generate,
    import_verb,
    init,
    report,
    runs_verb,
    study,
    train,
    transport,
)
from mixerloop.notation import shortened

TRACEBACK = "MIXERLOOP_TRACEBACK"
"""Set it to see where an error came from."""

AGAIN_SECONDS = 0.02

Verb = (
    Annotated[describe.Describe, tyro.conf.subcommand("describe", description=describe.HELP)]
    | Annotated[data.Data, tyro.conf.subcommand("data", description=data.HELP)]
    | Annotated[train.Train, tyro.conf.subcommand("train", description=train.HELP)]
    | Annotated[runs_verb.Runs, tyro.conf.subcommand("runs", description=runs_verb.HELP)]
    | Annotated[evaluate.Evaluate, tyro.conf.subcommand("evaluate", description=evaluate.HELP)]
    | Annotated[transport.Transport, tyro.conf.subcommand("transport", description=transport.HELP)]
    | Annotated[study.Study, tyro.conf.subcommand("study", description=study.HELP)]
    | Annotated[report.Report, tyro.conf.subcommand("report", description=report.HELP)]
    | Annotated[bench.Bench, tyro.conf.subcommand("bench", description=bench.HELP)]
    | Annotated[doctor.Doctor, tyro.conf.subcommand("doctor", description=doctor.HELP)]
    | Annotated[init.Init, tyro.conf.subcommand("init", description=init.HELP)]
    | Annotated[generate.Generate, tyro.conf.subcommand("generate", description=generate.HELP)]
    | Annotated[export.Export, tyro.conf.subcommand("export", description=export.HELP)]
    | Annotated[import_verb.Import, tyro.conf.subcommand("import", description=import_verb.HELP)]
)


def main() -> None:
    """Which part of a language model should loop, how often, and did the later passes earn it?"""
    machine.end_with_parent()
    signal.signal(signal.SIGTERM, _stop)
    sys.unraisablehook = deliver_again
    try:
        _run()
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader has gone, as in `mixerloop describe 15m | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except (KeyboardInterrupt, SystemExit) as stop:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # one that is delivered again comes too late
        if isinstance(stop, SystemExit):
            raise
        print(file=sys.stderr)
        sys.exit(130)
    except (ValueError, OSError, FloatingPointError) as error:
        if os.environ.get(TRACEBACK):
            raise
        rank = f" (rank {os.environ['RANK']})" if "RANK" in os.environ else ""
        print(f"mixerloop{rank}: {_one_line(error)}", file=sys.stderr)
        sys.exit(1 if isinstance(error, FloatingPointError) else 2)


def _run() -> None:
    if sys.argv[1:] == ["--version"]:
        print(f"mixerloop {__version__}")
        return
    run_verb(sys.argv[1:])


def run_verb(arguments: Sequence[str]) -> None:
    """Parse what stands behind `mixerloop`, and do it."""
    verb = tyro.cli(
        Verb,
        args=arguments,
        prog="mixerloop",
        description=main.__doc__,
        config=(
            tyro.conf.DisallowNone,
            tyro.conf.FlagCreatePairsOff,
            tyro.conf.OmitSubcommandPrefixes,
            tyro.conf.OmitArgPrefixes,
            tyro.conf.PositionalMetavarFromFieldName,
        ),
    )
    machine.settle()
    verb.run()


def deliver_again(lost: "sys.UnraisableHookArgs") -> None:
    """Send a signal once more if its exception was raised where Python drops exceptions.

    That is in finalizers and callbacks, of which importing torch has many: Ctrl-C would be ignored.
    """
    again = {KeyboardInterrupt: signal.SIGINT, SystemExit: signal.SIGTERM}.get(lost.exc_type)
    if again is None:
        sys.__unraisablehook__(lost)
    else:
        threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), again)).start()


def _stop(number: int, frame: object) -> NoReturn:
    """Unwind, so that what is half-written disappears."""
    sys.exit(128 + number)


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return " ".join(f"{error.filename}: {error.strerror}".split())
    return shortened(" ".join(str(error).split()), most=1000)
