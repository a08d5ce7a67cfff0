"""What a shell may complete: keys of `--set` with their values, names that options choose from, and paths.

Runs at every press of a key, so it imports nothing: the configuration's keys are listed in `config_keys`.
"""

import os
from collections.abc import Callable, MutableMapping

from .config_keys import RUN, TRAIN

_KEY = "_PACKTRAIN_KEY"
"""The key that stands before the value, where bash took them for two words."""

Complete = Callable[[str], list[str]]

ORDERS = ("sequential", "full", "blocks")
TAILS = ("drop", "pad", "repeat")
ATTENTION = ("auto", "packed_varlen", "packed_block_mask", "sdpa", "eager")
DEVICES = ("cpu", "cuda")
DTYPES = ("float32", "bfloat16", "float16")
RECIPES = ("ddp", "fsdp2", "zero3", "slurm-node", "slurm-nodes")


def _of(values: tuple[str, ...]) -> Complete:
    def complete(incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    return complete


order, tail, attention, dtype, launch = map(_of, (ORDERS, TAILS, ATTENTION, DTYPES, RECIPES))
device, split = _of(DEVICES), _of(("train", "holdout"))
executor, format = _of(RUN["run.executor"]), _of((*RUN["sources.0.format"], "python:"))


def path(incomplete: str) -> list[str]:
    """Nothing: then the shell completes files and folders by itself."""
    return []


def setting(incomplete: str) -> list[str]:
    """`KEY=VALUE` of a run's configuration."""
    return _settings(RUN, incomplete)


def train_setting(incomplete: str) -> list[str]:
    """`KEY=VALUE` of a training's configuration."""
    return _settings(TRAIN, incomplete)


def _settings(keys: dict[str, tuple[str, ...]], incomplete: str) -> list[str]:
    if (before := os.environ.get(_KEY)) is not None:
        return [value for value in keys.get(before, ()) if value.startswith(incomplete)]
    key, equals, _ = incomplete.partition("=")
    if equals:
        return [one for value in keys.get(key, ()) if (one := f"{key}={value}").startswith(incomplete)]
    found = [one for one in keys if one.startswith(key)]
    if len(found) != 1:
        return [f"{one}=" for one in found]
    # A single word is followed by a space: with the default beside it, the cursor stays behind the equals sign.
    values = keys[found[0]]
    return [*([f"{found[0]}="] if len(values) < 2 else []), *(f"{found[0]}={value}" for value in values)]


def mend_zsh() -> None:
    """Lets zsh complete at the first Tab, too.

    Typer's script, where it is installed, only declares the function at that, and answers the second one.
    """
    try:
        from typer import _completion_shared as shared

        script = shared._completion_scripts["zsh"]
        declares = "compdef %(complete_func)s %(prog_name)s"
        calls = f'if [[ $funcstack[1] == _%(prog_name)s ]]; then\n  %(complete_func)s "$@"\nelse\n  {declares}\nfi'
        shared._completion_scripts["zsh"] = script.replace(f"\n{declares}\n", f"\n{calls}\n")
    except (ImportError, AttributeError, KeyError):
        return  # another typer, which may have mended it


def mend_words(environ: MutableMapping[str, str]) -> None:
    """Bash takes `a=b` for three words and hands all of them out; this joins them again, up to the word in question.

    Of that one, the value alone stays, because it is all that bash will replace.
    """
    if "COMP_WORDS" not in environ or "_PACKTRAIN_COMPLETE" not in environ:
        return
    words, at = environ["COMP_WORDS"].split("\n"), int(environ.get("COMP_CWORD", "0"))
    current = words[at] if at < len(words) else ""
    before = words[:at]
    if current == "=":
        before, current = [*before, "="], ""
    joined: list[str] = []
    for position, word in enumerate(before):
        if position and joined and (word == "=" or before[position - 1] == "="):
            joined[-1] += word
        else:
            joined.append(word)
    if before and before[-1] == "=" and joined[-2:-1] == ["--set"]:
        environ[_KEY] = joined.pop().removesuffix("=")
    environ["COMP_WORDS"], environ["COMP_CWORD"] = "\n".join([*joined, current]), str(len(joined))
