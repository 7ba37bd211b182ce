"""`python -m mixerloop`."""

from mixerloop.cli.main import main

main()
