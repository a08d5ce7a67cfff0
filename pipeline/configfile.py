"""Reads a configuration: YAML and overrides. Errors name the file, the key and the nearest valid key."""

import difflib
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from ..schemas.config.config import RunConfig, SourceConfig
from ..schemas.config.hints import configured_by, did_you_mean
from ..schemas.config.yamltext import MAX_BYTES, BoundError, parse_yaml
from ..schemas.errors import ConfigError

_Model = TypeVar("_Model", bound=BaseModel)
_PLAIN = {
    "int_parsing": "a whole number",
    "int_parsing_size": "a smaller whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
}
"""The expected input, in plain words, for each of pydantic's error types."""
_SHOWN = 80
"""Maximum number of characters of a wrong value that a message repeats."""


class Typed(str):
    """An override that the user gave as a separate option; messages name that option instead of `--set`."""

    typed: str

    def __new__(cls, override: str, typed: str) -> "Typed":
        """`typed`: the option and its value, as the user typed them."""
        made = super().__new__(cls, override)
        made.typed = typed
        return made


def load_config(
    config: "RunConfig | Mapping[str, Any] | str | Path",
    base: Path | None = None,
    overrides: Sequence[str] = (),
    *,
    typed: bool = False,
) -> tuple[RunConfig, Path]:
    """Return a validated configuration, and the folder where its relative paths start.

    Args:
        config: a validated configuration, plain data, or the path of a YAML file.
        base: the folder to use instead; by default the file's, or the working directory.
        overrides: `key.path=value`, with the value in YAML.
        typed: whether everything came from the command line, so that messages advise options instead of keys.

    Raises:
        ConfigError: the configuration is not valid; the message names the file, the key, what is wrong and what would
        be valid.
    """
    if isinstance(config, RunConfig):
        if overrides:
            raise ConfigError("overrides need a configuration that is not yet validated; give a path or a mapping")
        return config, base or Path.cwd()
    configured_by(None if typed else [override.partition("=")[0].strip() for override in overrides])
    return load_as(RunConfig, config, base, overrides)


def load_as(
    model: type[_Model], config: Mapping[str, Any] | str | Path, base: Path | None = None, overrides: Sequence[str] = ()
) -> tuple[_Model, Path]:
    """Load a configuration of any other model, such as that of a training. See `load_config`."""
    if isinstance(config, Mapping):
        lines: dict[tuple[Any, ...], int] = {}
        data, where, folder = deepcopy(dict(config)), "the configuration", Path.cwd()
    else:
        path = Path(config)
        data, lines = _read(path)
        where, folder = str(path), path.absolute().parent
    overruled: dict[tuple[Any, ...], str] = {}
    for override in overrides:
        overruled[_override(data, override)] = getattr(override, "typed", f"--set {override}")
    try:
        return model.model_validate(data), base or folder
    except ValidationError as error:
        raise ConfigError(explain(error, where, lines, overruled, model)) from None


def with_format(source: SourceConfig, format: str, keys: Mapping[str, str]) -> SourceConfig:
    """Return the source, with the format that was detected.

    Raises:
        ConfigError: another key of the source does not fit that format.
    """
    try:
        return SourceConfig.model_validate({**source.model_dump(), "format": format, "keys": dict(keys)})
    except ValidationError as error:
        raise ConfigError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None


def explain(
    error: ValidationError,
    where: str,
    lines: Mapping[tuple[Any, ...], int],
    overruled: Mapping[tuple[Any, ...], str],
    model: type[BaseModel],
) -> str:
    """Write pydantic's errors, one per line: file and line or override, key, what is wrong, what would be valid."""
    out = []
    wrong = [tuple(item["loc"]) for item in error.errors()]
    missing = [tuple(item["loc"]) for item in error.errors() if item["type"] == "missing"]
    meant = {
        (*location[:-1], _nearest(location, model))
        for location in (tuple(item["loc"]) for item in error.errors() if item["type"] == "extra_forbidden")
    }
    for item in error.errors():
        location = tuple(item["loc"])
        if item["type"] == "missing" and location in meant:
            continue  # the key is misspelt; another line reports that
        if item["type"] == "too_short" and any(other[: len(location)] == location != other for other in wrong):
            continue  # pydantic leaves out items with errors when it counts
        line = next((lines[location[:n]] for n in range(len(location), 0, -1) if location[:n] in lines), None)
        override = next(
            (overruled[location[:n]] for n in range(len(location), 0, -1) if location[:n] in overruled), None
        )
        if override is None and item["type"] not in ("missing", "value_error"):
            # an override set a key below a key that is not a section
            override = next(
                (said for path, said in overruled.items() if location and path[: len(location)] == location), None
            )
        place = override or (f"{where}, line {line}" if line else where)
        key = ".".join(str(part) for part in location if part != "[key]")
        place = f"{place}: {key}" if key else place
        if item["type"] == "extra_forbidden":
            near, known = _nearest(location, model), _fields(model, location[:-1])
            lacking = [path[-1] for path in missing if path[:-1] == location[:-1]]
            if len(lacking) == 1 and not difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.85):
                near = str(lacking[0])  # the only key that the section needs, under another name
            hint = f"; did you mean {near}?" if near else f"; known keys: {', '.join(known)}"
            out.append(f"{place}: there is no such key{hint}")
        elif item["type"] == "missing":
            out.append(f"{place}: is required but missing")
        else:
            message = item["msg"].removeprefix("Value error, ").replace("valid tuple", "list")
            shown = "" if isinstance(item["input"], (dict, list)) else f" (got {_shown(item['input'])})"
            message = message[:1].lower() + message[1:]
            if item["type"] in _PLAIN:
                message = f"input should be {_PLAIN[item['type']]}"
            near = _nearest_value(item["input"], item.get("ctx", {}).get("expected"))
            out.append(f"{place}: {message}{shown if 'got' not in message else ''}{near}")
    return "\n".join(out)


def _read(path: Path) -> tuple[dict[str, Any], dict[tuple[Any, ...], int]]:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"there is no configuration {path}; check the spelling, or the folder you are in") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; the configuration is a YAML file, such as mix.yaml") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the configuration {path} cannot be read: {error}; it must be a file of UTF-8 text that you may read"
        ) from None
    try:
        data, node = parse_yaml(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        if isinstance(error, BoundError):
            raise ConfigError(f"{path}{line}: {problem}; packtrain schema prints all keys of a configuration") from None
        hint = "; indent with spaces, because YAML allows no tabs there" if "'\\t'" in problem else ""
        hint = "; data is given with --format and --input" if path.suffix in (".json", ".jsonl") else hint
        raise ConfigError(f"{path}{line}: this is not YAML: {problem}{hint}") from None
    if path.suffix == ".jsonl":  # a file of one row is YAML, too
        raise ConfigError(f"{path}: a .jsonl file holds data, not a configuration; give it with --format and --input")
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: a configuration is a mapping of keys to values, such as `out: runs/first`")
    lines: dict[tuple[Any, ...], int] = {}
    if node is not None:
        try:
            _lines(node, (), lines)
        except ConfigError as error:
            raise ConfigError(f"{path}, {error}") from None
    return data, lines


def _lines(node: yaml.Node, path: tuple[Any, ...], out: dict[tuple[Any, ...], int]) -> None:
    """Record the line of each key. YAML itself keeps the last of two equal keys and loses the others."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*path, key.value)
            line = key.start_mark.line + 1
            if here in out:
                raise ConfigError(
                    f"line {line}: {'.'.join(map(str, here))} is set again (see line {out[here]}); remove one of them"
                )
            out[here] = line
            _lines(value, here, out)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            here = (*path, index)
            out[here] = value.start_mark.line + 1
            _lines(value, here, out)


def _override(data: dict[str, Any], override: str) -> tuple[Any, ...]:
    """Set one key, and return its place."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {override}: write key.path=value, such as truncate.max_length=4096")
    try:
        value, _ = parse_yaml(text)
    except BoundError as error:
        raise ConfigError(f"--set {override[:60]}…: {error.problem}") from None
    except yaml.YAMLError:
        value = text
    target: Any = data
    *parents, last = key.strip().split(".")
    if not all((*parents, last)):
        raise ConfigError(f"--set {override}: the key has an empty part; write key.path=value")
    places = []
    for parent in parents:
        place = _place(target, parent, override)
        places.append(place)
        if isinstance(target, dict) and not isinstance(target.get(parent), (dict, list)):
            alone = target.get(parent)  # `mask: assistant` is short for `mask: {policy: assistant}`
            target[parent] = {"policy": alone} if places == ["mask"] and isinstance(alone, str) else {}
        target = target[place]
    place = _place(target, last, override)
    target[place] = value
    return (*places, place)


def _place(target: Any, part: str, override: str) -> Any:
    """Return the key of a mapping, or the index of an existing list item."""
    if isinstance(target, dict):
        return part
    if not isinstance(target, list):
        raise ConfigError(
            f"--set {override}: {part!r} is below {target!r}, which has no keys; set that value as a whole"
        )
    if not part.isdecimal() or int(part) >= len(target):
        raise ConfigError(f"--set {override}: there is no item {part!r} in a list of {len(target)}; count from 0")
    return int(part)


def _shown(value: Any) -> str:
    """Write a value for a message, shortened."""
    try:
        text = repr(value)
    except ValueError:  # Python does not convert numbers of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _nearest(location: tuple[Any, ...], model: type[BaseModel]) -> str:
    """Return the known key nearest to a misspelt one; "" if none is near."""
    known = _fields(model, location[:-1])
    near = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
    return near[0] if near else ""


def _nearest_value(given: Any, expected: object) -> str:
    """Return `; did you mean assistant?` for a wrong value, if a valid one is near.

    Args:
        expected: the valid values as pydantic lists them, in quotes.
    """
    if not isinstance(given, str) or not isinstance(expected, str):
        return ""
    return did_you_mean(given, re.findall(r"'([^']*)'", expected))


def _fields(model: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    """Return the known keys at a place in the configuration."""
    current: Any = model
    for part in location:
        if isinstance(part, int):
            continue
        field = current.model_fields.get(part) if hasattr(current, "model_fields") else None
        if field is None:
            return []
        candidates = [field.annotation, *get_args(field.annotation)]
        current = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
        if current is None:
            return []
    return list(current.model_fields)
