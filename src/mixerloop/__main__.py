"""The command `mixerloop`, and `python -m mixerloop`.

Little is imported before signals are heard: parsing the verbs takes a third of a second to load.
The first lines let Ctrl-C end this process without the traceback of Python's own handler; `signal`,
which `start` needs, takes longer to load than all else before it.
"""

import _signal  # pyright: ignore[reportMissingImports]

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

from mixerloop import start


def main() -> None:
    """Run the verb that the command line names."""
    start.begin()
    from mixerloop.cli.main import main as run_verb

    run_verb()


if __name__ == "__main__":  # workers that prepare data import this module again
    main()
