"""The help of a verb that has verbs of its own: each of them on a line or two, and examples."""

import shutil
import textwrap

from mixerloop.cli.verb_tree import Verb

PROGRAM = "mixerloop"
EXAMPLES = "examples:"


def overview(verb: Verb) -> str:
    """The usage, the verbs with the first sentence of their help, and the rest of the help."""
    columns = shutil.get_terminal_size().columns
    about, _, examples = verb.about.partition(EXAMPLES)
    width = max(map(len, verb.names)) + 4
    lines = [f"usage: {' '.join((PROGRAM, *verb.path))} [-h] VERB ...", ""]
    for paragraph in about.strip().split("\n\n"):
        lines += [*textwrap.wrap(paragraph, columns), ""]
    lines.append("verbs:")
    for below in verb.verbs:
        lines += textwrap.wrap(
            below.about.partition("\n\n")[0],
            columns,
            initial_indent=f"  {below.path[-1]:{width - 2}}",
            subsequent_indent=" " * width,
        )
    if examples:
        lines += ["", f"{EXAMPLES}{examples.rstrip()}"]
    lines += ["", f"{' '.join((PROGRAM, *verb.path))} VERB --help has the options and examples."]
    return "\n".join(lines) + "\n"
