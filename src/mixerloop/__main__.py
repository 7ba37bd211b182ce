"""`python -m mixerloop`."""

from mixerloop.cli.main import main

if __name__ == "__main__":  # workers that prepare data import this module again
    main()
