"""What shells are offered after `--set`: keys of a configuration, and the values that a key can have."""

import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

_VARIABLE = "_PACKTRAIN_COMPLETE"
"""How a shell asks for completions, in the environment; see typer."""


def config_model(*, training: bool) -> Any:
    """The configuration of a run, or of a training."""
    if training:
        from ...training.trainer.train_config import TrainConfig

        return TrainConfig
    from ...schemas.config.config import RunConfig

    return RunConfig


def config_keys(*, training: bool) -> list[str]:
    """The keys of a run's configuration, or of a training's."""
    from ..config_errors import all_keys

    return list(all_keys(config_model(training=training)))


def key_values(key: str, *, training: bool) -> list[str]:
    """The values of a key that has choices, or is true or false; none for another one."""
    from ..config_errors import section_of

    model = config_model(training=training)
    *parents, last = (part for part in key.split(".") if not part.isdecimal())
    for part in parents:
        field = model.model_fields.get(part)
        model = section_of(field.annotation) if field is not None else None
        if model is None:
            return []
    field = model.model_fields.get(last)
    if field is None:
        return []
    section = section_of(field.annotation)
    # `mask: assistant` is short for `mask: {policy: assistant}`.
    if section is not None and "policy" in section.model_fields:
        field = section.model_fields["policy"]
    # A format is a text in the model, because it may also name a user's own reader.
    if last == "format" and not training:
        from ...schemas.config.source import AUTO
        from ...schemas.tables.row_formats import ROW_FORMATS

        return [AUTO, *ROW_FORMATS]
    return list(dict.fromkeys(_values_of(field.annotation)))


def _values_of(annotation: Any) -> Iterator[str]:
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
        return [text for text in offered if text.startswith(incomplete)]

    return complete


@contextmanager
def whole_settings() -> Iterator[None]:
    """Let typer complete `KEY=VALUE` in bash, too, which takes the text after `=` for a word of its own: the body sees
    the words joined, and what it prints is given to bash without what stands before that word.
    """
    # Of the shells, bash alone cuts words at `=`.
    joined = _join_setting(os.environ) if os.environ.get(_VARIABLE) == "complete_bash" else None
    if joined is None:
        yield
        return
    words, prefix = joined
    os.environ.update(COMP_WORDS="\n".join(words), COMP_CWORD=str(len(words) - 1))
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            yield
    finally:
        for line in printed.getvalue().splitlines():
            sys.stdout.write(f"{line.removeprefix(prefix)}\n")


def _join_setting(environment: Mapping[str, str]) -> tuple[list[str], str] | None:
    """The words up to the cursor, with `KEY`, `=` and `VALUE` as one, and `KEY=`; None if they end in no setting.

    `packtrain run --set mask = as` gives `packtrain run --set mask=as`, and `mask=`.
    """
    try:
        words = environment["COMP_WORDS"].split("\n")[: int(environment["COMP_CWORD"]) + 1]
    except (KeyError, ValueError):
        return None
    if words and words[-1] == "=":
        words.append("")  # the cursor stands behind it
    # The last four are `--set`, KEY, `=` and VALUE.
    if len(words) < 4 or words[-2] != "=" or words[-4] != "--set":
        return None
    prefix = f"{words[-3]}="
    return [*words[:-3], prefix + words[-1]], prefix
