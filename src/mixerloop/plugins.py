"""Modules of the user that register kinds, tasks or measures, for the command line.

`MIXERLOOP_PLUGINS=my_mixers,my_tasks` imports these modules before a verb runs, and in the process
of every cell of a study. In a notebook, import the module. Nothing else that is loaded runs code.
"""

import importlib
import os

VARIABLE = "MIXERLOOP_PLUGINS"


def load_plugins() -> None:
    """Import the modules that the environment names; Python must find them, as by PYTHONPATH."""
    for name in filter(None, map(str.strip, os.environ.get(VARIABLE, "").split(","))):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ValueError(f"{VARIABLE}: cannot import {name}: {error}") from None
