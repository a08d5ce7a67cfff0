"""Reads a configuration: YAML and overrides. Errors name the file, the line, the key and the nearest valid key."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from ..schemas.config.config import RunConfig, SourceConfig
from ..schemas.errors import ConfigError, did_you_mean
from .foreign_configs import recognise, translation

_Model = TypeVar("_Model", bound=BaseModel)
_Place = tuple[Any, ...]
"""Keys and indexes that lead to a value."""
_CHARACTERS = 4 << 20
"""Maximum length of a YAML file. The parser takes about ten seconds per megabyte."""
_REPEATED = 100_000
"""Maximum number of keys and values that aliases of a YAML file repeat."""
_SHOWN = 80
"""Maximum number of characters of a wrong value that a message repeats."""
_LISTED = 20
"""Maximum number of mistakes that a message lists."""
_OTHER_COMMANDS = (
    ("packtrain train", {"model", "data"}, {"out", "rows_per_step"}),
    ("packtrain run", {"sources", "tokenizer"}, {"out", "pack", "mask", "truncate"}),
)
"""(command, keys that its configurations have, keys of which they have at least one)."""


class Setting(NamedTuple):
    """A key that is set beside the configuration."""

    key: str
    """Its path, such as `truncate.max_length`."""
    value: Any
    origin: str
    """What the user wrote, for messages: `--set truncate.max_length=4096`, or `--max-length 4096`."""

    @classmethod
    def parse(cls, text: str) -> "Setting":
        """The setting in a `key.path=value`, with the value in YAML.

        Raises:
            ConfigError: it has another form.
        """
        key, equals, value = text.partition("=")
        if not equals or not all(key.strip().split(".")):
            raise ConfigError(f"--set {text}: write key.path=value, such as truncate.max_length=4096")
        try:
            return cls(key.strip(), _parse(value), f"--set {text}")
        except yaml.YAMLError:
            return cls(key.strip(), value, f"--set {text}")


def settings_of(overrides: Mapping[str, Any] | None) -> list[Setting]:
    """The settings in the `overrides` of a function."""
    return [Setting(key, value, f"overrides[{key!r}]") for key, value in (overrides or {}).items()]


def load_config(
    config: "RunConfig | Mapping[str, Any] | str | Path",
    base: Path | None = None,
    overrides: Iterable[str | Setting] = (),
    in_memory: Mapping[str, str] | None = None,
) -> tuple[RunConfig, Path]:
    """Return a validated configuration, and the folder where its relative paths start.

    Args:
        config: a validated configuration, plain data, or the path of a YAML file.
        base: the folder to use instead; by default the file's, or the working directory.
        overrides: `key.path=value`, with the value in YAML, or settings; they replace keys of data or of a file.
        in_memory: source → what stands for its path, of sources whose rows are in memory. They are added to the
            configuration, unless it has them, then without `path`.

    Raises:
        ConfigError: the configuration is not valid; the message names the file, the key, what is wrong and what would
        be valid.
    """
    overrides = list(overrides)
    if isinstance(config, RunConfig):
        if not in_memory and not overrides:
            return config, base or Path.cwd()
        config = config.model_dump(mode="json", exclude_unset=True)
    return load_as(RunConfig, config, base, overrides, in_memory)


def load_as(
    model: type[_Model],
    config: Mapping[str, Any] | str | Path,
    base: Path | None = None,
    overrides: Iterable[str | Setting] = (),
    in_memory: Mapping[str, str] | None = None,
) -> tuple[_Model, Path]:
    """Load a configuration of any other model, such as that of a training. See `load_config`."""
    origins: dict[_Place, str] = {}
    if isinstance(config, Mapping):
        data, where, folder = deepcopy(dict(config)), "the configuration", Path.cwd()
    else:
        where, folder = str(config), Path(config).absolute().parent
        data = _read(Path(config), origins)
    _refuse_foreign(data, where, model)
    for override in overrides:
        setting = Setting.parse(override) if isinstance(override, str) else override
        place = _override(data, setting)
        origins = {one: said for one, said in origins.items() if one[: len(place)] != place}
        origins[place] = setting.origin
    _add_sources(data, in_memory or {})
    try:
        return model.model_validate(data), base or folder
    except ValidationError as error:
        raise ConfigError(_explained(error, where, data, origins, model)) from None


def _add_sources(data: dict[str, Any], in_memory: Mapping[str, str]) -> None:
    """Add sources to a configuration, or their paths to those that it has.

    Raises:
        ConfigError: one has a path already.
    """
    listed = data.get("sources") or []
    if not in_memory or not isinstance(listed, (list, tuple)):
        return  # validation says what is wrong with it
    data["sources"] = listed = list(listed)
    for name, path in in_memory.items():
        source = next((one for one in listed if isinstance(one, dict) and one.get("name") == name), None)
        if source is None:
            listed.append(source := {"name": name})
        if "path" in source:
            raise ConfigError(f"{path}: sources.{name} has a path; leave it out, or give the dataset another name")
        source["path"] = path


def with_format(source: SourceConfig, format: str, keys: Mapping[str, str]) -> SourceConfig:
    """Return the source, with the format that was detected.

    Raises:
        ConfigError: another key of the source does not fit that format.
    """
    try:
        return SourceConfig.model_validate({**source.model_dump(), "format": format, "keys": dict(keys)})
    except ValidationError as error:
        raise ConfigError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None


def _refuse_foreign(data: Mapping[str, Any], where: str, model: type[BaseModel]) -> None:
    """Raise ConfigError if the keys are those of another tool, or of another command. What a tool's keys are called
    here is said.
    """
    for command, all_of, one_of in _OTHER_COMMANDS:
        typical = sorted(one_of & data.keys())
        if not all_of <= model.model_fields.keys() and all_of <= data.keys() and typical:
            named = ", ".join([*sorted(all_of), *typical[:2]])
            raise ConfigError(f"{where} is a configuration of {command}: it has {named}; give it to that command")
    if (recognised := recognise(data)) is None:
        return
    tool, shown = recognised
    lines = "\n".join(translation(tool, data))
    raise ConfigError(
        f"{where} is a configuration of {tool.name}: it has {', '.join(shown)}. What its keys are called in a "
        f"configuration of packtrain (docs/trainers.md has all; docs/configuration.md explains them):\n{lines}"
    )


def _explained(
    error: ValidationError, where: str, data: Any, origins: Mapping[_Place, str], model: type[BaseModel]
) -> str:
    """Write pydantic's errors, one a line: file and line or override, key, what is wrong, what would be valid.

    Args:
        origins: what set the keys: `line 3`, or an override.
    """
    wrong = [(_real(item["loc"], data, item["type"] == "missing"), item) for item in error.errors()]
    out: dict[str, list[str]] = {}
    unknown = [place for place, item in wrong if item["type"] == "extra_forbidden"]
    if unknown:
        said = [_unknown(place, model, origins, alone=len(unknown) == 1) for place in unknown[:_LISTED]]
        more = f" and {len(unknown) - _LISTED:,} more" if len(unknown) > _LISTED else ""
        out[where] = [f"there {'is no such key' if len(unknown) == 1 else 'are no such keys'}: {', '.join(said)}{more}"]
    for place, item in wrong:
        kind, key = item["type"], ".".join(map(str, place))
        if kind == "too_short" and any(other[: len(place)] == place != other for other, _ in wrong):
            continue  # pydantic leaves out items with errors when it counts
        if kind != "extra_forbidden":
            what = "is required but missing" if kind == "missing" else _what(item, _fields(model, place))
            at = next((origins[place[:length]] for length in range(len(place), 0, -1) if place[:length] in origins), "")
            if not at.startswith("--"):
                at = ", ".join(filter(None, (where, at)))
            named = at.startswith("--") and not at.startswith("--set")  # an option says which key it is
            said = out.setdefault(at if named or not key else f"{at}: {key}", [])
            if what not in said:
                said.append(what)
    lines = [f"{place}: {'; or '.join(said)}" for place, said in out.items()]
    return "\n".join([*lines[:_LISTED], *([f"and {len(lines) - _LISTED:,} more"] if len(lines) > _LISTED else [])])


def _unknown(place: _Place, model: type[BaseModel], origins: Mapping[_Place, str], *, alone: bool) -> str:
    """An unknown key, where it is, and the key that is meant; if it is alone, else all known ones."""
    known = _fields(model, place[:-1])
    near = did_you_mean(str(place[-1]), known).removeprefix("; ") or alone * f"known keys: {', '.join(known)}"
    shown = "; ".join(filter(None, (origins.get(place, ""), near)))
    return f"{'.'.join(map(str, place))} ({shown})" if shown else ".".join(map(str, place))


def _real(location: _Place, data: Any, missing: bool) -> _Place:
    """Where an error is in the data: pydantic's location without names of classes and types."""
    out: list[Any] = []
    for part in location:
        if (isinstance(data, Mapping) and part in data) or (
            isinstance(data, (list, tuple)) and type(part) is int and part < len(data)
        ):
            out.append(part)
            data = data[part]
    return (*out, location[-1]) if missing else tuple(out)


def _what(item: Any, fields: Sequence[str]) -> str:
    """What is wrong with a value, in a sentence.

    Args:
        fields: the keys that it may have, if it is a section.
    """
    message = (
        item["msg"].removeprefix("Value error, ").replace("valid tuple", "list").replace("Tuple should", "list should")
    )
    if item["type"] in ("model_type", "model_attributes_type"):  # pydantic names the class
        message = f"input should be keys with values, such as `{{{fields[0]}: …}}`"
    elif item["type"] == "string_unicode":
        message = "input should be text, but has half of a character (\\ud800 to \\udfff)"
    message = message[:1].lower() + message[1:]
    given, expected = item["input"], item.get("ctx", {}).get("expected")
    got = _shown(given)
    shown = "" if isinstance(given, (dict, list)) or got in message else f" (got {got})"
    near = did_you_mean(given, re.findall(r"'([^']*)'", expected)) if isinstance(given, str) and expected else ""
    return f"{message}{shown}{near}"


def _fields(model: type[BaseModel], place: _Place) -> list[str]:
    """The known keys at a place in the configuration."""
    current: Any = model
    for part in place:
        if isinstance(part, int):
            continue
        field = current.model_fields.get(part)
        candidates = [field.annotation, *get_args(field.annotation)] if field is not None else []
        current = next((one for one in candidates if isinstance(one, type) and issubclass(one, BaseModel)), None)
        if current is None:
            return []
    return list(current.model_fields)


def _shown(value: Any) -> str:
    """Write a value for a message, shortened."""
    try:
        text = repr(value)
    except ValueError:  # Python does not write numbers of more than 4,300 digits, but YAML reads them in hexadecimal
        return "a number of thousands of digits"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _read(path: Path, origins: dict[_Place, str]) -> dict[str, Any]:
    """The content of a YAML file; notes the line of each key."""
    if path.suffix in (".jsonl", ".csv", ".parquet"):
        raise ConfigError(f"{path}: such a file holds data, not a configuration; give it with --input")
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_CHARACTERS + 1)
        if len(text) > _CHARACTERS:
            raise ConfigError(f"{path} has more than {_CHARACTERS:,} characters; data is given with --input")
        data = _parse(text, lambda node: _lines(node, (), origins, path, len(text) + _REPEATED))
    except FileNotFoundError:
        raise ConfigError(f"there is no configuration {path}; check the spelling, or the folder you are in") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; the configuration is a YAML file, such as mix.yaml") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the configuration {path} cannot be read: {error}; it must be a file of UTF-8 text that you may read"
        ) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(
            f"{path}{line}: this is not YAML: {problem}; packtrain schema prints all keys of a configuration"
        ) from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: a configuration is a mapping of keys to values, such as `out: runs/first`")
    return data


class _Loader(yaml.SafeLoader):
    """YAML without dates: 2024-07-26 is text."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as in the class above
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> str:
        """Joins the halves in which JSON writes a character above U+FFFF."""
        return str(super().construct_scalar(node)).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _parse(text: str, look: Callable[[yaml.Node], None] = lambda node: None) -> Any:
    """The data of a YAML text.

    Args:
        look: sees the nodes, which know their lines, before aliases are written out.

    Raises:
        yaml.YAMLError: it is something else, or nested too deeply.
    """
    loader = _Loader(text)
    try:
        if (node := loader.get_single_node()) is None:
            return None
        look(node)
        return loader.construct_document(node)
    except RecursionError:
        what = "nested too deeply; an alias (*name) may not stand inside its own anchor (&name)"
        raise yaml.MarkedYAMLError(problem=what) from None
    except ConfigError:
        raise
    except (ValueError, LookupError, AttributeError) as error:  # `!!int x`, `!!bool x`, `!!timestamp x`
        raise yaml.MarkedYAMLError(problem=f"a value does not fit its tag (!!…), or is too long ({error})") from None
    finally:
        loader.dispose()


def _lines(node: yaml.Node, above: _Place, out: dict[_Place, str], path: Path, most: int) -> None:
    """Note the line of each key. YAML itself keeps the last of two equal keys and loses the others.

    Raises:
        ConfigError: a key is set twice, or is no text; or, with all aliases written out, there are more than so many
            keys and items.
        RecursionError: an alias stands inside its own anchor.
    """
    if len(out) > most:
        what = f"its aliases (*name) repeat more than {_REPEATED:,} values; write out what is meant"
        raise ConfigError(f"{path}, line {node.start_mark.line + 1}: {what}")
    pairs: Sequence[tuple[Any, yaml.Node, yaml.Node]] = ()
    if isinstance(node, yaml.MappingNode):
        if odd := next((key for key, _ in node.value if not isinstance(key, yaml.ScalarNode)), None):
            raise ConfigError(f"{path}, line {odd.start_mark.line + 1}: a key is a text, not a list or a mapping")
        pairs = [(key.value, key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        pairs = [(index, value, value) for index, value in enumerate(node.value)]
    for key, marked, value in pairs:
        here, line = (*above, key), f"line {marked.start_mark.line + 1}"
        if here in out:
            name = ".".join(map(str, here))
            raise ConfigError(f"{path}, {line}: {name} is set again (see {out[here]}); remove one of them")
        out[here] = line
        _lines(value, here, out, path, most)


def _override(data: dict[str, Any], setting: Setting) -> _Place:
    """Set one key; returns its place."""
    *parents, last = setting.key.split(".")
    target: Any = data
    place: list[Any] = []
    for part in (*parents, last):
        if isinstance(target, list) and part.isdecimal() and int(part) < len(target):
            place.append(int(part))
        elif isinstance(target, dict):
            place.append(part)
        else:
            what = f"{part!r} is below {_shown(target)}, which has no keys; set that value as a whole"
            if isinstance(target, list):
                what = f"there is no item {part!r} in a list of {len(target)}; count from 0"
            raise ConfigError(f"{setting.origin}: {what}")
        if len(place) > len(parents):
            target[place[-1]] = setting.value
            break
        if isinstance(target, dict) and isinstance(alone := target.get(part), str | None):
            # `mask: assistant` is short for `mask: {policy: assistant}`
            target[part] = {"policy": alone} if part == "mask" and alone else alone or {}
        target = target[place[-1]]
    return tuple(place)
