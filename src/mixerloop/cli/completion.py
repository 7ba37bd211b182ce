"""`mixerloop completion`: a script that completes verbs, options and names in a shell."""

from dataclasses import dataclass
from typing import Literal

import tyro

HELP = """Print a script that completes verbs, options, choices, configs and studies in your shell.

Install it once; a new shell reads it. zsh: any folder of $fpath, as the file _mixerloop. fish: the
file ~/.config/fish/completions/mixerloop.fish. bash: as in the first example.

examples:
  mixerloop completion bash > ~/.local/share/bash-completion/completions/mixerloop
  mixerloop completion zsh > "${fpath[1]}/_mixerloop"
  mixerloop completion fish > ~/.config/fish/completions/mixerloop.fish
"""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """The options of `mixerloop completion`."""

    shell: tyro.conf.Positional[Literal["bash", "zsh", "fish"]]
    """bash, zsh or fish."""

    def run(self) -> None:
        """Print the script."""
        from mixerloop.cli.completion_scripts import completion_script
        from mixerloop.cli.main import Verb
        from mixerloop.cli.verb_tree import tree_of

        print(completion_script(tree_of(Verb), self.shell), end="")
