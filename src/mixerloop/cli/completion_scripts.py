"""Scripts that complete the command in bash, zsh and fish.

A script holds the names itself, so that a press of the tab key starts no Python. bash and zsh share
the functions `_mixerloop_verb` and `_mixerloop_values`, which set variables; no variable is called
`path`, which is $PATH in zsh.
"""

import shlex
from collections.abc import Callable, Mapping

from mixerloop import catalog
from mixerloop.cli.verb_tree import Option, Verb
from mixerloop.config import PRESETS
from mixerloop.schedule import LOOPS

BASH = r"""# mixerloop completion bash
%(tables)s
_mixerloop() {
  local verbs options flags lists names values at= option= count=0 i=1 name
  local word=${COMP_WORDS[COMP_CWORD]}
  COMPREPLY=()
  _mixerloop_verb ""
  while ((i < COMP_CWORD)) && [[ " $verbs " == *" ${COMP_WORDS[i]} "* ]]; do
    at="${at:+$at }${COMP_WORDS[i]}"
    _mixerloop_verb "$at"
    i=$((i + 1))
  done
  for (( ; i < COMP_CWORD; i++)); do
    case ${COMP_WORDS[i]} in
      --*) option=${COMP_WORDS[i]} count=0 ;;
      =) ;;  # bash takes --name=value apart
      *) count=$((count + 1)) ;;
    esac
  done
  [[ $word == = ]] && word=
  if [[ $word == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$word"))
  elif [[ -n $option && " $flags " != *" $option "* ]] &&
    [[ $count == 0 || " $lists " == *" $option "* ]]; then
    _mixerloop_values "$at $option"
    COMPREPLY=($(compgen -W "$values" -- "$word"))
  elif [[ -n $verbs ]]; then
    compopt +o default +o bashdefault 2>/dev/null
    COMPREPLY=($(compgen -W "$verbs" -- "$word"))
  elif [[ -n $names ]]; then
    COMPREPLY=($(compgen -W "$names" -- "$word"))
    compopt -o filenames 2>/dev/null
    while IFS= read -r name; do
      COMPREPLY+=("$name")
    done < <(compgen -d -- "$word"; compgen -f -X '!*.toml' -- "$word")
  fi
}
complete -o default -o bashdefault -F _mixerloop mixerloop
"""
ZSH = r"""#compdef mixerloop
# mixerloop completion zsh
%(tables)s
_mixerloop() {
  local verbs options flags lists names values at= option= count=0 i=2
  _mixerloop_verb ""
  while ((i < CURRENT)) && [[ " $verbs " == *" ${words[i]} "* ]]; do
    at="${at:+$at }${words[i]}"
    _mixerloop_verb "$at"
    i=$((i + 1))
  done
  for (( ; i < CURRENT; i++)); do
    case ${words[i]} in
      --*=*) option= ;;
      --*) option=${words[i]} count=0 ;;
      *) count=$((count + 1)) ;;
    esac
  done
  if [[ $PREFIX == --*=* ]]; then
    option=${PREFIX%%%%=*} count=0
    compset -P '*='
  elif [[ $PREFIX == -* ]]; then
    compadd -- ${=options}
    return
  fi
  if [[ -n $option && " $flags " != *" $option "* ]] &&
    [[ $count == 0 || " $lists " == *" $option "* ]]; then
    _mixerloop_values "$at $option"
    if [[ -n $values ]]; then compadd -- ${=values}; else _files; fi
  elif [[ -n $verbs ]]; then
    compadd -- ${=verbs}
  else
    compadd -- ${=names}
    _files
  fi
}
if [[ ${funcstack[1]} == _mixerloop ]]; then
  _mixerloop "$@"
else
  compdef _mixerloop mixerloop
fi
"""
FISH = r"""# mixerloop completion fish
function __mixerloop_is
    set -l words (commandline -opc)
    test "$words[2..-1]" = "$argv"
end
function __mixerloop_in
    set -l words (commandline -opc)
    string match -q -- "$argv *" "$words[2..-1] "
end
%(lines)s
"""


def completion_script(tree: Verb, shell: str) -> str:
    """The script for a shell of `SHELLS`."""
    return SHELLS[shell](tree)


def _bash(tree: Verb) -> str:
    return BASH % {"tables": _tables(tree)}


def _zsh(tree: Verb) -> str:
    return ZSH % {"tables": _tables(tree)}


def _tables(tree: Verb) -> str:
    """The functions that know all names, for bash and zsh."""
    lines = ["_mixerloop_verb() {", "  verbs= options= flags= lists= names=", '  case "$1" in']
    for verb in tree.walk():
        named = {
            "verbs": verb.names,
            "options": _option_names(verb),
            "flags": [option.name for option in verb.options if option.is_flag],
            "lists": [option.name for option in verb.options if option.is_many],
            "names": _names(verb),
        }
        assigned = " ".join(f'{name}="{" ".join(words)}"' for name, words in named.items() if words)
        lines.append(f'    "{" ".join(verb.path)}") {assigned} ;;')
    lines += ["  esac", "}", "_mixerloop_values() {", "  values=", '  case "$1" in']
    for values, places in _by_values(tree).items():
        lines.append(f'    {"|".join(places)}) values="{" ".join(values)}" ;;')
    return "\n".join([*lines, "  esac", "}"])


def _by_values(tree: Verb) -> dict[tuple[str, ...], list[str]]:
    """Where each set of values can be given: the verb and its option, quoted."""
    places: dict[tuple[str, ...], list[str]] = {}
    for verb in tree.walk():
        for option in verb.options:
            if values := _values(option):
                places.setdefault(values, []).append(f'"{" ".join((*verb.path, option.name))}"')
    return places


def _fish(tree: Verb) -> str:
    lines = ["complete -c mixerloop -n '__mixerloop_is' -l version"]
    for verb in tree.walk():
        exact = f"-n {shlex.quote(' '.join(('__mixerloop_is', *verb.path)))}"
        inside = f"-n {shlex.quote(' '.join(('__mixerloop_in', *verb.path)))}"
        for below in verb.verbs:
            about = below.about.partition("\n")[0]
            lines.append(
                f"complete -c mixerloop {exact} -f -a {below.path[-1]} -d {_fish_quoted(about)}"
            )
        if names := _names(verb):
            lines.append(f"complete -c mixerloop {inside} -a '{' '.join(names)}'")
        for option in verb.options:
            if not option.is_positional:
                values = " ".join(_values(option))
                value = "" if option.is_flag else f" -r -f -a '{values}'" if values else " -r"
                name = option.name.removeprefix("--")
                lines.append(f"complete -c mixerloop {inside} -l {name}{value}")
        lines.append(f"complete -c mixerloop {exact} -l help")
    return FISH % {"lines": "\n".join(lines)}


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _option_names(verb: Verb) -> list[str]:
    return [*verb.option_names, *([] if verb.path else ["--version"])]


def _values(option: Option) -> tuple[str, ...]:
    """The values that an option has or, if others are possible, the usual values."""
    if option.name in ("--schedule", "--model.schedule", "--loops"):
        return tuple(LOOPS)
    if option.name in ("--size", "--sizes", "--random", "--model.preset"):
        return tuple(PRESETS)
    return () if option.is_flag or option.is_positional else option.choices


def _names(verb: Verb) -> list[str]:
    """The names that a verb takes as its first argument, beside files."""
    for option in verb.options:
        if option.is_positional and option.choices:
            return list(option.choices)
    match verb.path:
        case ("train",) | ("configs",):
            return catalog.config_names()
        case ("init",) | ("describe",):
            return [*PRESETS, *catalog.config_names()]
        case ("study",):
            return ["status", *catalog.study_names()]
        case ("studies",):
            return catalog.study_names()
        case _:
            return []


SHELLS: Mapping[str, Callable[[Verb], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
"""The script of each shell, as a function of the verbs."""
