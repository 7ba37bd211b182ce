"""The command `mixerloop`, and `python -m mixerloop`.

Little is imported before signals are heard: parsing the verbs takes a third of a second to load.
"""

from mixerloop import start


def main() -> None:
    """Run the verb that the command line names."""
    start.begin()
    from mixerloop.cli.main import main as run_verb

    run_verb()


if __name__ == "__main__":  # workers that prepare data import this module again
    main()
