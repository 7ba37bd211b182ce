"""The entry point of the `mixerloop` command: parse the verb with its options, and run it."""

import sys
from typing import Annotated

import tyro

from mixerloop import __version__, machine
from mixerloop.cli import (
    bench,
    catalog_verbs,
    completion,
    data,
    describe,
    doctor,
    evaluate,
    export,
    generate,
    import_verb,
    init,
    law,
    report,
    runs_verb,
    study,
    train,
    transport,
)
from mixerloop.cli.options import VERSION, parse
from mixerloop.messages import shown
from mixerloop.plugins import load_plugins
from mixerloop.program import run_program
from mixerloop.start import Output

Verb = (
    Annotated[describe.Describe, tyro.conf.subcommand("describe", description=describe.HELP)]
    | Annotated[data.Data, tyro.conf.subcommand("data", description=data.HELP)]
    | Annotated[train.Train, tyro.conf.subcommand("train", description=train.HELP)]
    | Annotated[
        catalog_verbs.Configs,
        tyro.conf.subcommand("configs", description=catalog_verbs.CONFIGS_HELP),
    ]
    | Annotated[runs_verb.Runs, tyro.conf.subcommand("runs", description=runs_verb.HELP)]
    | Annotated[evaluate.Evaluate, tyro.conf.subcommand("evaluate", description=evaluate.HELP)]
    | Annotated[transport.Transport, tyro.conf.subcommand("transport", description=transport.HELP)]
    | Annotated[study.Study, tyro.conf.subcommand("study", description=study.HELP)]
    | Annotated[
        catalog_verbs.Studies,
        tyro.conf.subcommand("studies", description=catalog_verbs.STUDIES_HELP),
    ]
    | Annotated[law.Law, tyro.conf.subcommand("law", description=law.HELP)]
    | Annotated[report.Report, tyro.conf.subcommand("report", description=report.HELP)]
    | Annotated[bench.Bench, tyro.conf.subcommand("bench", description=bench.HELP)]
    | Annotated[doctor.Doctor, tyro.conf.subcommand("doctor", description=doctor.HELP)]
    | Annotated[init.Init, tyro.conf.subcommand("init", description=init.HELP)]
    | Annotated[generate.Generate, tyro.conf.subcommand("generate", description=generate.HELP)]
    | Annotated[export.Export, tyro.conf.subcommand("export", description=export.HELP)]
    | Annotated[import_verb.Import, tyro.conf.subcommand("import", description=import_verb.HELP)]
    | Annotated[
        completion.Completion, tyro.conf.subcommand("completion", description=completion.HELP)
    ]
)


HELP = """Which part of a language model should loop, how often, and did the later passes pay?

Train looped language models, measure what each pass does, and compare schedules with intervals.

examples:
  mixerloop describe nano
  mixerloop train nano-hops --schedule mixer_loop
  mixerloop transport runs/nano-hops-mixer_loop
  mixerloop study quick
  mixerloop --version
"""


def main() -> None:
    """Run the verb that the command line names, as a program."""
    run_program(_run)


def _run() -> None:
    if sys.argv[1:] == [VERSION]:
        print(f"mixerloop {__version__}")
        return
    verb = parse(Verb, sys.argv[1:], about=HELP)
    machine.settle()
    load_plugins()
    if isinstance(sys.stdout, Output):
        sys.stdout.shows = shown  # names of files and models can hold escape sequences
    verb.run()
