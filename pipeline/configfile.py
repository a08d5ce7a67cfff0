"""Makes a configuration of a YAML file or plain data, of overrides, and of datasets in memory."""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml
from pydantic import ValidationError

from ..schemas.config.config import RunConfig, SourceConfig
from ..schemas.config.section import ConfigModel
from ..schemas.errors import ConfigError
from .config_errors import Place, describe_errors, show
from .foreign_configs import recognise, translation
from .yaml_file import parse_yaml, read_yaml

_Model = TypeVar("_Model", bound=ConfigModel)
_OTHER_COMMANDS = (
    ("packtrain train", {"model", "data"}, {"out", "rows_per_step"}),
    ("packtrain run", {"sources", "tokenizer"}, {"out", "pack", "mask", "truncate"}),
)
"""(command, keys that each of its configurations has, keys of which each has at least one). By these, a file that was
given to the wrong command is recognised.
"""


class Setting(NamedTuple):
    """A key that is set beside the configuration."""

    key: str
    """Its path, such as `truncate.max_length`."""
    value: Any
    """Plain data, as YAML gives it: a text, a number, a list, a mapping."""
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
            return cls(key.strip(), parse_yaml(value), f"--set {text}")
        except yaml.YAMLError:
            # Such as a pattern that begins with `*`, which YAML takes for an alias: it is meant as text.
            return cls(key.strip(), value, f"--set {text}")


def settings_of(overrides: Mapping[str, Any] | None) -> list[Setting]:
    """The settings in `overrides={"seed": 3}`, an argument of functions such as `packtrain.run`; none for None."""
    return [Setting(key, value, f"overrides[{key!r}]") for key, value in (overrides or {}).items()]


def load_config(
    config: "RunConfig | Mapping[str, Any] | str | Path",
    base: Path | None = None,
    overrides: Iterable[str | Setting] = (),
    in_memory: Mapping[str, str] | None = None,
) -> tuple[RunConfig, Path]:
    """Return a validated configuration of a run, and the folder where its relative paths start.

    Args:
        config: a validated configuration, plain data, or the path of a YAML file.
        base: the folder where relative paths start. None: the folder of the file, or for data the working directory.
        overrides: `key.path=value`, with the value in YAML, or settings; they replace keys of data or of a file.
        in_memory: name of a source whose rows are in memory → the text that stands for its path. Each such source is
            added to the configuration. If the configuration has a source of that name already, to say how the rows are
            used, that source gets the path, and must have none of its own.

    Raises:
        ConfigError: the configuration is not valid; the message names the file, the key, what is wrong and what would
        be valid.
    """
    overrides = list(overrides)
    if isinstance(config, RunConfig):
        if not in_memory and not overrides:
            return config, base or Path.cwd()
        # As plain data again, because overrides are checked together with the rest. Keys that were not set stay out of
        # it: a message about one says that its value is the default.
        config = config.model_dump(mode="json", exclude_unset=True)
    return load_as(RunConfig, config, base, overrides, in_memory)


def load_as(
    model: type[_Model],
    config: Mapping[str, Any] | str | Path,
    base: Path | None = None,
    overrides: Iterable[str | Setting] = (),
    in_memory: Mapping[str, str] | None = None,
) -> tuple[_Model, Path]:
    """Return a validated configuration of a run or of a training, and the folder where its relative paths start.

    Args:
        model: the class of the configuration, such as `TrainConfig` for a training.
        config, base, overrides, in_memory: as for `load_config`, but `config` is not yet validated.

    Raises:
        ConfigError: the configuration is not valid; names the file, the key, and what would be valid.
    """
    # Place of a key → what set it, for messages: `line 3`, which `read_yaml` notes, or an override.
    origins: dict[Place, str] = {}
    if isinstance(config, Mapping):
        data = deepcopy(dict(config))  # overrides must not change what the caller holds
        where = "the configuration"
        folder = Path.cwd()
    else:
        data = read_yaml(Path(config), origins)
        where = str(config)
        folder = Path(config).absolute().parent
    _refuse_foreign(data, where, model)
    for override in overrides:
        setting = Setting.parse(override) if isinstance(override, str) else override
        place = _override(data, setting)
        # An override of `truncate` replaces the whole section, and with it the lines of the keys below it.
        origins = {key_place: origin for key_place, origin in origins.items() if key_place[: len(place)] != place}
        origins[place] = setting.origin
    _add_sources(data, in_memory or {})  # before the validation, which demands a path of each source
    # Validated once, with all overrides: a value of the file that an override replaces may be wrong.
    try:
        return model.model_validate(data), base or folder
    except ValidationError as error:
        raise ConfigError(describe_errors(error, where, data, origins, model)) from None


def _add_sources(data: dict[str, Any], in_memory: Mapping[str, str]) -> None:
    """Add sources whose rows are in memory to a configuration. If it has a source of that name, only the path is added.

    Args:
        in_memory: name of a source → the text that stands for its path.

    Raises:
        ConfigError: a source of the configuration has such a name, and a path already.
    """
    configured = data.get("sources") or []
    # What is no list is left to validation, which says so.
    if not in_memory or not isinstance(configured, (list, tuple)):
        return
    sources = list(configured)
    data["sources"] = sources
    for name, path in in_memory.items():
        source = next((source for source in sources if isinstance(source, dict) and source.get("name") == name), None)
        if source is None:
            source = {"name": name}
            sources.append(source)
        if "path" in source:
            raise ConfigError(f"{path}: sources.{name} has a path; leave it out, or give the dataset another name")
        source["path"] = path


def with_format(source: SourceConfig, format: str, keys: Mapping[str, str]) -> SourceConfig:
    """Return the source with the format that was detected, checked as if it had been configured.

    Args:
        keys: the columns that the format is read from, as in `SourceConfig.keys`.

    Raises:
        ConfigError: another key of the source does not fit that format.
    """
    try:
        return SourceConfig.model_validate({**source.model_dump(), "format": format, "keys": dict(keys)})
    except ValidationError as error:
        # pydantic puts "Value error, " before the words of our own checks.
        raise ConfigError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None


def _refuse_foreign(data: Mapping[str, Any], where: str, model: type[ConfigModel]) -> None:
    """Raise ConfigError if the keys are those of another tool, or of another command. The message says what a tool's
    keys are called in packtrain.

    Without this, each of dozens of keys would be reported as unknown.
    """
    for command, required, typical in _OTHER_COMMANDS:
        # The model is that of the command that is run. If it has all required keys, `command` is that very command.
        is_this_command = required <= model.model_fields.keys()
        typical_keys = sorted(typical & data.keys())
        if not is_this_command and required <= data.keys() and typical_keys:
            named_keys = ", ".join([*sorted(required), *typical_keys[:2]])
            raise ConfigError(f"{where} is a configuration of {command}: it has {named_keys}; give it to that command")
    recognised = recognise(data)
    if recognised is None:
        return
    tool, tool_keys = recognised
    lines = "\n".join(translation(tool, data))
    raise ConfigError(
        f"{where} is a configuration of {tool.name}: it has {', '.join(tool_keys)}. What its keys are called in a "
        f"configuration of packtrain (docs/trainers.md has all; docs/configuration.md explains them):\n{lines}"
    )


def _override(data: dict[str, Any], setting: Setting) -> Place:
    """Set one key, and make the sections above it that are missing.

    Returns:
        The key's place: `("sources", 0, "mask", "policy")` for the setting `sources.0.mask.policy`.

    Raises:
        ConfigError: there is no such place, as below a number or behind the end of a list.
    """
    *parents, last = setting.key.split(".")
    section: Any = data
    place: list[str | int] = []
    for part in parents:
        key = _key_in(section, part, setting)
        place.append(key)
        # Only a mapping, whose key is the part itself, can get a missing one; of a list, `_key_in` has checked that the
        # item exists.
        if isinstance(section, dict):
            _make_section(section, part)
        section = section[key]
    key = _key_in(section, last, setting)
    section[key] = setting.value
    return (*place, key)


def _key_in(section: Any, part: str, setting: Setting) -> str | int:
    """What a part of a setting's key is in a section: a key, or an index in a list.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(section, dict):
        return part
    if not isinstance(section, list):
        raise ConfigError(
            f"{setting.origin}: {part!r} is below {show(section)}, which has no keys; set that value as a whole"
        )
    if not part.isdecimal() or int(part) >= len(section):
        raise ConfigError(f"{setting.origin}: there is no item {part!r} in a list of {len(section)}; count from 0")
    return int(part)


def _make_section(parent: dict[str, Any], key: str) -> None:
    """Make the value of a key a section, so that keys below it can be set. A key without a value gets an empty section,
    and a mask that is written as one word gets a section with this policy. Any other value stays as it is, and
    `_key_in` refuses a key below it if it is neither a section nor a list.
    """
    value = parent.get(key)
    if value is None or value == "":
        parent[key] = {}
    elif key == "mask" and isinstance(value, str):
        parent[key] = {"policy": value}  # `mask: assistant` is short for `mask: {policy: assistant}`
