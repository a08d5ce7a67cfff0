"""Completion in shells: what is offered after `--set`, and what typer leaves undone in bash and zsh."""

import io
import os
import re
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

from ...schemas.files.foreign import read_regular_text

if TYPE_CHECKING:
    from ...schemas.config.section import ConfigModel

_VARIABLE = "_PACKTRAIN_COMPLETE"
"""The variable of the environment in which a shell names itself when it asks for completions; see typer."""
_BASH = "complete_bash"
_ZSH = "complete_zsh"
_INSTALL_OPTION = "--install-completion"
_ZSH_FILE = Path(".zfunc", "_packtrain")
"""The file that typer installs for zsh, in the home of the user."""
_ZSH_FIRST_ANSWER = '[[ $zsh_eval_context[-1] == loadautofunc ]] && _packtrain_completion "$@"\n'
"""A line that is added to that file. zsh reads it at the first Tab of a shell: typer's lines only register the function
that answers further ones, and the first would give nothing."""
_ZSH_KEYS = re.compile(r"""_arguments '\*: :\(\((?P<keys>(?:"[\w.]+="\s*)+)\)\)'\s*""", re.ASCII)
"""What typer has zsh evaluate where nothing but keys is offered, such as `pack.strategy=`."""


# What is offered after `--set`


def config_model(*, training: bool) -> "type[ConfigModel]":
    """The configuration of a run, or of a training."""
    if training:
        from ...training.trainer.train_config import TrainConfig

        return TrainConfig
    from ...schemas.config.config import RunConfig

    return RunConfig


def config_keys(*, training: bool) -> list[str]:
    """The keys of a run's configuration, or of a training's, such as `truncate.max_length`."""
    from ..config_errors import all_keys

    return list(all_keys(config_model(training=training)))


def key_values(key: str, *, training: bool) -> list[str]:
    """The values of a key that has choices, or is true or false; [] for any other key."""
    from ...schemas.config.section import section_of

    section: type[ConfigModel] | None = config_model(training=training)
    annotation: Any = None
    for part in key.split("."):
        if part.isdecimal():  # which section of a list, as in `sources.0.format`
            continue
        field = section.model_fields.get(part) if section is not None else None
        if field is None:
            return []
        annotation = field.annotation
        section = section_of(annotation)
    # `mask: assistant` is short for `mask: {policy: assistant}`.
    if section is not None and "policy" in section.model_fields:
        annotation = section.model_fields["policy"].annotation
    # A source's format is a text in the model, because it may also name a user's own reader.
    if key.endswith(".format") and not training:
        from ...schemas.config.source import AUTO
        from ...schemas.tables.row_formats import ROW_FORMATS

        return [AUTO, *ROW_FORMATS]
    return list(dict.fromkeys(_values_of(annotation)))


def _values_of(annotation: Any) -> Iterator[str]:
    """The values that a type allows, as they are written in YAML; none if they cannot be listed, as for a number. A
    union or a list gives the values of its members: a and b for `Literal["a", "b"] | None`.
    """
    if annotation is bool:
        yield from ("true", "false")
    elif get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
    elif get_origin(annotation) in (Union, UnionType, tuple):
        for kind in get_args(annotation):
            yield from _values_of(kind)


def setting_completer(*, training: bool) -> Callable[[str], list[str]]:
    """Completes a `KEY=VALUE`: the key first, and its values once `=` is written."""

    def complete(incomplete: str) -> list[str]:
        key, equals, _ = incomplete.partition("=")
        if equals:
            offered = [f"{key}={value}" for value in key_values(key, training=training)]
        else:
            offered = [f"{name}=" for name in config_keys(training=training)]
        offered = [text for text in offered if text.startswith(incomplete)]
        # If one word is offered, bash writes it with a space after it, and the value could not follow. If two are, it
        # writes the beginning that they share. So `KEY=VALUE` is offered beside `KEY=`: bash writes `KEY=`.
        if len(offered) == 1 and not equals and os.environ.get(_VARIABLE) == _BASH:
            offered.append(f"{offered[0]}VALUE")
        return offered

    return complete


# What typer leaves undone


@contextmanager
def completed_in_shells() -> Iterator[None]:
    """Run the body, in which typer answers a shell that asks for completions. For bash and zsh typer's answer is
    corrected: bash would write the key of `KEY=VALUE` twice, zsh a space after `KEY=`. If the body installs the
    completion for zsh, a line is added to the installed file.
    """
    shell = os.environ.get(_VARIABLE)
    if shell not in (_BASH, _ZSH):
        try:
            yield
        finally:
            if _INSTALL_OPTION in sys.argv:
                _let_zsh_answer_first_tab()
        return
    prefix = _join_setting(os.environ) if shell == _BASH else ""
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            yield
    finally:  # typer ends its answer by raising SystemExit
        answer = printed.getvalue()
        if shell == _BASH:
            # bash puts each line in the place of the word after `=` alone, which must not have the key again.
            answer = "".join(f"{line.removeprefix(prefix)}\n" for line in answer.splitlines())
        else:
            answer = _without_space(answer)
        sys.stdout.write(answer)


def _join_setting(environment: MutableMapping[str, str]) -> str:
    """Join KEY, `=` and VALUE before the cursor to one word, in the variables that typer reads. bash, unlike other
    shells, splits words at `=`.

    The words `packtrain run --set mask = as` become `packtrain run --set mask=as`, and `mask=` is returned.

    Returns:
        `KEY=`; "" if there is nothing to join.
    """
    # COMP_WORDS has a word a line, and COMP_CWORD the index of the word at the cursor, which is the last that is read.
    try:
        words = environment["COMP_WORDS"].split("\n")[: int(environment["COMP_CWORD"]) + 1]
    except (KeyError, ValueError):
        return ""
    if words and words[-1] == "=":
        words.append("")  # the cursor stands behind it
    # The last four are `--set`, KEY, `=` and VALUE.
    if len(words) < 4 or words[-2] != "=" or words[-4] != "--set":
        return ""
    prefix = f"{words[-3]}="
    words = [*words[:-3], prefix + words[-1]]
    environment.update(COMP_WORDS="\n".join(words), COMP_CWORD=str(len(words) - 1))
    return prefix


def _without_space(command: str) -> str:
    """What zsh evaluates, rewritten so that no space follows an inserted key: the value comes right after its `=`.

    `_arguments '*: :(("seed=" "out="))'` becomes `compadd -S '' -- "seed=" "out="`; any other command stays as it is.
    """
    match = _ZSH_KEYS.fullmatch(command)
    if match is None:
        return command
    return f"compadd -S '' -- {' '.join(match['keys'].split())}\n"


def _let_zsh_answer_first_tab() -> None:
    """Add `_ZSH_FIRST_ANSWER` to the file that typer has installed for zsh, if there is one that lacks it."""
    path = Path.home() / _ZSH_FILE
    if not path.is_file():
        return
    text = read_regular_text(path)
    if _ZSH_FIRST_ANSWER not in text:
        path.write_text(f"{text}\n\n{_ZSH_FIRST_ANSWER}")
