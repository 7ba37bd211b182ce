"""`mixerloop configs` and `mixerloop studies`: the files that come with the package."""

from dataclasses import asdict, dataclass

import tyro

from mixerloop import catalog
from mixerloop.files import json_text
from mixerloop.text_tables import print_table, table_of_words

CONFIGS_HELP = """List the configs that come with mixerloop, or print one of them.

examples:
  mixerloop configs
  mixerloop configs nano-hops
  mixerloop configs nano-hops > mine.toml
  mixerloop configs --json
"""
STUDIES_HELP = """List the studies that come with mixerloop, or print one of them.

examples:
  mixerloop studies
  mixerloop studies quick
  mixerloop studies quick > mine.toml
  mixerloop studies --json
"""


@dataclass(frozen=True, kw_only=True)
class Configs:
    """The options of `mixerloop configs`."""

    name: tyro.conf.Positional[str | None] = None
    """A config to print; by default all are listed."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Print a table of all configs or the text of one, or JSON."""
        if self.name is not None:
            _print_text(self.name, catalog.config_text(self.name), as_json=self.json)
            return
        listed = catalog.list_configs()
        if self.json:
            print(json_text([asdict(config) for config in listed]), end="")
            return
        table = table_of_words("config", "about")
        for config in listed:
            table.add_row(config.name, config.about)
        print_table(table)
        print("\nnext: mixerloop train nano-hops")


@dataclass(frozen=True, kw_only=True)
class Studies:
    """The options of `mixerloop studies`."""

    name: tyro.conf.Positional[str | None] = None
    """A study to print; by default all are listed."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Print a table of all studies or the text of one, or JSON."""
        if self.name is not None:
            _print_text(self.name, catalog.study_text(self.name), as_json=self.json)
            return
        listed = catalog.list_studies()
        if self.json:
            print(json_text([asdict(study) for study in listed]), end="")
            return
        table = table_of_words("study", "title", "needs")
        for study in listed:
            table.add_row(study.name, study.title, study.needs)
        print_table(table)
        print("\nnext: mixerloop study quick --dry-run")


def _print_text(name: str, text: str, *, as_json: bool) -> None:
    print(json_text({"name": name, "text": text}) if as_json else text, end="")
