"""Shell completion: keys of `--set` with their values, names that options choose from, and paths.

The shell starts packtrain at every press of Tab, so the answers are in `config_keys`: importing the configuration's
models would take 150 ms more, those of a training 200 ms. Two things that typer lacks are added here: `KEY=VALUE` in
bash and the first Tab in zsh.
"""

import os
import re
from collections.abc import Callable, Iterable, MutableMapping

from .config_keys import RUN, TRAIN

_KEY = "_PACKTRAIN_KEY"
"""Environment variable with the key of the value being completed, where bash split `KEY=VALUE` into words."""

Complete = Callable[[str], list[str]]


def _of(values: Iterable[str]) -> Complete:
    def complete(incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    return complete


order, tail, attention = _of(TRAIN["loader.order"]), _of(TRAIN["loader.tail"]), _of(TRAIN["attention"])
dtype = _of([name for name in TRAIN["model.dtype"] if name != "auto"])
device, split = _of(("cpu", "cuda")), _of(("train", "holdout"))
executor, format = _of(RUN["run.executor"]), _of((*RUN["sources.0.format"], "python:"))


def launch(incomplete: str) -> list[str]:
    """The recipes of `packtrain launch`."""
    from ....training.launch.recipes import RECIPES

    return _of(RECIPES)(incomplete)


def path(incomplete: str) -> list[str]:
    """Nothing, so that the shell completes files and folders itself."""
    return []


def setting(incomplete: str) -> list[str]:
    """`KEY=VALUE` of a run's configuration."""
    return _settings(RUN, incomplete)


def train_setting(incomplete: str) -> list[str]:
    """`KEY=VALUE` of a training's configuration."""
    return _settings(TRAIN, incomplete)


def _settings(keys: dict[str, tuple[str, ...]], incomplete: str) -> list[str]:
    if (before := os.environ.get(_KEY)) is not None:
        return _of(keys.get(before, ()))(incomplete)
    key, equals, _ = incomplete.partition("=")
    if equals:
        return _of(f"{key}={value}" for value in keys.get(key, ()))(incomplete)
    found = [one for one in keys if one.startswith(key)]
    if len(found) != 1:
        return [f"{one}=" for one in found]
    # The shell adds a space after a single answer. A second one keeps the cursor behind the equals sign.
    values = keys[found[0]]
    return [*([f"{found[0]}="] if len(values) < 2 else []), *(f"{found[0]}={value}" for value in values)]


def join_words(environ: MutableMapping[str, str]) -> None:
    """Join the words `a`, `=` and `b`, into which bash splits `a=b`; typer would take them for three arguments.

    For the word being completed, typer gets only what follows the equals sign, because bash replaces only that.
    """
    if environ.get("_PACKTRAIN_COMPLETE") != "complete_bash" or "COMP_CWORD" not in environ:
        return
    words = environ.get("COMP_WORDS", "").split("\n")[: int(environ["COMP_CWORD"]) + 1]
    joined = re.sub("\n=(\n|$)", "=", "\n".join(words)).split("\n")
    if "=" in words[-2:] and not joined[-1].startswith("-"):
        environ[_KEY], _, joined[-1] = joined[-1].partition("=")
    environ["COMP_WORDS"], environ["COMP_CWORD"] = "\n".join(joined), str(len(joined) - 1)


def complete_at_once_in_zsh() -> None:
    """Make the zsh script answer the first Tab.

    With typer's own, the first Tab only declares the function. Its scripts are private, hence the import.
    """
    try:
        from typer import _completion_shared as shared

        script = shared._completion_scripts["zsh"]
    except (ImportError, AttributeError, KeyError):
        return  # another typer, which may have fixed it
    declares = "compdef %(complete_func)s %(prog_name)s"
    calls = f'if [[ $funcstack[1] == _%(prog_name)s ]]; then\n  %(complete_func)s "$@"\nelse\n  {declares}\nfi'
    shared._completion_scripts["zsh"] = script.replace(f"\n{declares}\n", f"\n{calls}\n")
