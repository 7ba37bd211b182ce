"""`mixerloop doctor`: what this machine and this installation have, and what is missing."""

from dataclasses import dataclass

from mixerloop.files import json_text

HELP = """Look at the machine and the installation, and say what is missing and what it costs.

examples:
  mixerloop doctor
  mixerloop doctor --json
"""


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """The options of `mixerloop doctor`."""

    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Look and say."""
        from mixerloop.installation import inspect_installation, installation_text

        here = inspect_installation()
        if self.json:
            print(json_text(here.to_json()), end="")
        else:
            print(installation_text(here))
