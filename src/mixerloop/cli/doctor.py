"""`mixerloop doctor`: facts about this machine and this installation, and missing extras."""

from dataclasses import dataclass

from mixerloop.files import json_text

HELP = """Inspect the machine and the installation: versions, speed, and missing extras.

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
        """Inspect the installation and print text or JSON."""
        from mixerloop.installation import inspect_installation, installation_text

        here = inspect_installation()
        if self.json:
            print(json_text(here.to_json()), end="")
        else:
            print(installation_text(here))
