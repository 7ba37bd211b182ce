"""Pick the verb, run it, and turn bad input into one line and exit code 2."""

import os
import sys
from typing import Annotated

import tyro

from mixerloop import __version__, machine
from mixerloop.cli import describe, generate, init

TRACEBACK = "MIXERLOOP_TRACEBACK"
"""Set it to see where an error came from."""

Verb = (
    Annotated[describe.Describe, tyro.conf.subcommand("describe", description=describe.HELP)]
    | Annotated[init.Init, tyro.conf.subcommand("init", description=init.HELP)]
    | Annotated[generate.Generate, tyro.conf.subcommand("generate", description=generate.HELP)]
)


def main() -> None:
    """Which part of a language model should loop, how often, and did the later passes earn it?"""
    if sys.argv[1:] == ["--version"]:
        print(f"mixerloop {__version__}")
        return
    verb = tyro.cli(
        Verb,
        prog="mixerloop",
        description=main.__doc__,
        config=(
            tyro.conf.DisallowNone,
            tyro.conf.FlagCreatePairsOff,
            tyro.conf.PositionalMetavarFromFieldName,
        ),
    )
    machine.settle()
    try:
        verb.run()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has gone, as in `mixerloop describe 15m | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        sys.exit(130)
    except (ValueError, OSError) as error:
        if os.environ.get(TRACEBACK):
            raise
        print(f"mixerloop: {error}", file=sys.stderr)
        sys.exit(2)
