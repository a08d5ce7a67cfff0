"""Checks of a block without running it. Each check raises PageError, with page and line."""

import ast
import importlib
import importlib.util
import inspect
import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from typing import Any

import typer
import yaml
from packtrain.pipeline.cli import main as cli
from packtrain.pipeline.configfile import load_as
from packtrain.schemas.config.config import RunConfig
from packtrain.schemas.errors import PacktrainError

from tests.docs.markdown_page import Block, PageError, page
from tests.docs.prepared import TRAINING


def check(block: Block) -> None:
    """Looks at a block, run or not."""
    match block.language:
        case "sh":
            shell(block)
        case "python":
            python(block)
        case "yaml" if block.reason is None:
            configuration(block)
        case "yaml":
            list(yaml.safe_load_all(block.text))
        case "json" if block.reason is None:
            json.loads(block.text)


# Shell


def shell(block: Block) -> None:
    """Bash can parse the block, and packtrain has all options that it uses."""
    parsed = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, check=False)
    if parsed.returncode:
        raise PageError(f"{block.where}: bash does not parse it: {parsed.stderr}")
    for name, options in commands(block.text):
        known = known_options()
        if name not in known:
            raise PageError(f"{block.where}: packtrain has no command {name!r}")
        for option in options:
            if option not in known[name]:
                raise PageError(f"{block.where}: packtrain {name} has no option {option}")


_COMMAND = re.compile(r"(?<![\w/.=-])packtrain ([a-z][\w-]*)([^\n;|&']*)")


def commands(script: str) -> Iterator[tuple[str, list[str]]]:
    """(command, its options) of every call of packtrain in a script, also within quoted scripts."""
    joined = re.sub(r"\\\n\s*", " ", script)
    plain = re.sub(r"(?m)(^|\s)#.*$", "", joined).replace("packtrain.pipeline.cli", "packtrain")
    plain = plain.replace("python -m packtrain", "packtrain").replace("-m packtrain", " packtrain")
    for name, rest in _COMMAND.findall(plain):
        yield name, [word.partition("=")[0] for word in rest.split() if re.match(r"--?[A-Za-z]", word)]


@cache
def known_options() -> dict[str, set[str]]:
    """The options of every command."""
    group: Any = typer.main.get_command(cli.app)
    return {
        name: {"--help", *(one for parameter in command.params for one in (*parameter.opts, *parameter.secondary_opts))}
        for name, command in group.commands.items()
    }


# Python


def python(block: Block) -> None:
    """It compiles; what it imports from packtrain is there, and takes the keywords that it is called with."""
    try:
        tree = ast.parse(block.text)
    except SyntaxError as error:
        raise PageError(f"{block.where}: Python does not compile it: {error}") from error
    known: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "packtrain":
            if missing(block):
                continue
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                if not hasattr(module, alias.name):
                    raise PageError(f"{block.where}: {node.module} has no {alias.name}")
                known[alias.asname or alias.name] = getattr(module, alias.name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and callable(known.get(node.func.id)):
            _check_keywords(block, node.func.id, known[node.func.id], node)


def _check_keywords(block: Block, name: str, called: Any, node: ast.Call) -> None:
    try:
        parameters = inspect.signature(called).parameters
    except ValueError:
        return
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return
    for keyword in node.keywords:
        if keyword.arg is not None and keyword.arg not in parameters:
            raise PageError(f"{block.where}: {name} takes no keyword {keyword.arg}")


OPTIONAL = frozenset(
    {"torch", "torchdata", "trl", "accelerate", "peft", "lightning", "polars", "ray", "obstore", "moto", "fastokens"}
    | {"megatron", "streaming"}
)
"""What may be missing where the tests run; blocks that need it are then skipped, and reported."""


def missing(block: Block) -> str | None:
    """The first package of `OPTIONAL` that a block wants and that is not installed."""
    return next((one for one in sorted(wanted(block)) if importlib.util.find_spec(one) is None), None)


_WANT_TORCH = {"train", "probe", "loader"}


def wanted(block: Block) -> set[str]:
    """The packages of `OPTIONAL` that a block imports, or that its commands do."""
    if block.language == "python":
        tree = ast.parse(block.text)
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {
            name.split(".")[0]
            for node in imports
            for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [str(node.module)])
        }
        modules = [node.module or "" for node in imports if isinstance(node, ast.ImportFrom)]
        if any(module.startswith("packtrain.training") for module in modules):
            names.add("torch")
        return names & OPTIONAL
    if block.language == "sh":
        called = {name for name, _ in commands(block.tested)}
        needs = {"torch"} if called & _WANT_TORCH else set()
        return needs | ({"obstore", "moto"} if "s3://" in block.tested else set())
    return set()


# YAML


def configuration(block: Block) -> None:
    """A configuration of packtrain, or keys of one, are what its models take."""
    data = yaml.safe_load(block.tested)
    if not isinstance(data, dict):
        raise PageError(f"{block.where}: is no mapping")
    keys = set(data)
    if keys <= set(RunConfig.model_fields):
        kind, base = RunConfig, yaml.safe_load(mix())
    elif missing_torch() is None and keys <= set(_train_config().model_fields):
        kind, base = _train_config(), dict(TRAINING)
    elif missing_torch() is not None:
        return
    else:
        strange = sorted(keys - set(RunConfig.model_fields))
        raise PageError(f"{block.where}: packtrain has no key {strange[0]!r} (if it is another program's: say so)")
    whole = data if block.mark("file") is not None else base | data
    try:
        load_as(kind, whole)
    except PacktrainError as error:
        raise PageError(f"{block.where}: {error}") from error


def missing_torch() -> str | None:
    """`torch`, if it is not installed."""
    return None if importlib.util.find_spec("torch") else "torch"


def _train_config() -> Any:
    return importlib.import_module("packtrain.training.trainer.config").TrainConfig


def mix() -> str:
    """The `mix.yaml` of docs/data.md."""
    (found,) = (block.text for block in page("docs/data.md").blocks if block.mark("file") == "mix.yaml")
    return found
