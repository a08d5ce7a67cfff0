"""Reads the YAML file of a configuration, with the line of each key, and within limits of size and of aliases.

PyYAML's nodes know their lines. ruamel.yaml would note them itself, but it reads YAML 1.2, in which `yes` and `010`
mean something else, and the limits of aliases would stay our own.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from ..schemas.errors import ConfigError
from .config_errors import Place

_MAX_CHARACTERS = 4 << 20
"""Maximum length of a YAML file. The parser takes about ten seconds per megabyte."""
_MAX_REPEATED = 100_000
"""Maximum number of keys and values that the aliases (`*name`) of a YAML file repeat."""
_DATA_SUFFIXES = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".arrow", ".feather", ".gz", ".zst", ".txt")


def refuse_data(path: Path) -> None:
    """Raise ConfigError if a file has the suffix of data."""
    if path.suffix in _DATA_SUFFIXES:
        raise ConfigError(f"{path}: such a file holds data, not a configuration; give it with --input")


def read_yaml(path: Path, origins: dict[Place, str]) -> dict[str, Any]:
    """The content of a YAML file.

    Args:
        origins: gets the place of each key and item → its line, such as `line 3`.

    Raises:
        ConfigError: the file cannot be read, is too large or is not YAML; its content is no mapping; a key is set twice
            or is no text; or aliases repeat too many values.
    """
    refuse_data(path)
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MAX_CHARACTERS + 1)  # one more shows that there are too many
        if len(text) > _MAX_CHARACTERS:
            raise ConfigError(f"{path} has more than {_MAX_CHARACTERS:,} characters; data is given with --input")
        with _python_errors_as_yaml_errors():
            root = yaml.compose(text, Loader=_Loader)
            if root is not None:
                # Each key or item that is written takes at least a character. If there are more of them than
                # characters, aliases repeat them. This is refused before data is made of the nodes, because it could
                # fill the memory.
                _note_lines(root, parent=(), origins=origins, path=path, limit=len(text) + _MAX_REPEATED)
            data = _construct(root)
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
    """Reads YAML, but without dates: 2024-07-26 stays a text, because `tokenizer.date` is one."""

    # First character of a text → (tag, pattern) of the types that it may have.
    yaml_implicit_resolvers = {  # noqa: RUF012 - as in the class above
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> str:
        """The text of a node. JSON writes a character above U+FFFF as two halves, such as `\\ud83d\\ude00`; they are
        joined.
        """
        return str(super().construct_scalar(node)).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def parse_yaml(text: str) -> Any:
    """The data of a short YAML text, such as the value of an option.

    Raises:
        yaml.YAMLError: the text is not YAML, or is nested too deeply.
    """
    with _python_errors_as_yaml_errors():
        return _construct(yaml.compose(text, Loader=_Loader))


def _construct(root: yaml.Node | None) -> Any:
    """The data of a text's nodes; None for an empty text, which has none."""
    if root is None:
        return None
    # A loader without a text of its own: nodes are all that it needs.
    return _Loader("").construct_document(root)


@contextmanager
def _python_errors_as_yaml_errors() -> Iterator[None]:
    """Turn Python's own errors, which PyYAML raises for some wrong texts, into errors of YAML.

    Raises:
        yaml.YAMLError: in place of a RecursionError, ValueError, LookupError or AttributeError.
    """
    try:
        yield
    except RecursionError:
        problem = "nested too deeply; an alias (*name) may not stand inside its own anchor (&name)"
        raise yaml.MarkedYAMLError(problem=problem) from None
    except ConfigError:  # of `_note_lines`; it is a ValueError, too, and says itself what is wrong
        raise
    except (ValueError, LookupError, AttributeError) as error:  # of `!!int x`, `!!bool x` and `!!timestamp x`
        raise yaml.MarkedYAMLError(problem=f"a value does not fit its tag (!!…), or is too long ({error})") from None


def _note_lines(node: yaml.Node, parent: Place, origins: dict[Place, str], path: Path, limit: int) -> None:
    """Note the line of each key and item below a node, and refuse keys that are set twice: PyYAML would silently keep
    the last of them.

    Args:
        parent: the place of the node; () for the root.
        origins: gets `line 3` for the place of each key and item.
        path: the file, for messages.
        limit: the most keys and items that may be noted. It keeps a small file whose aliases repeat each other from
            growing to billions of values.

    Raises:
        ConfigError: a key is set twice, or is no text; or, with all aliases written out, there are more than `limit`
            keys and items.
        RecursionError: an alias stands inside its own anchor.
    """
    if len(origins) > limit:
        raise ConfigError(
            f"{path}, line {node.start_mark.line + 1}: its aliases (*name) repeat more than {_MAX_REPEATED:,} values; "
            "write out what is meant"
        )
    # (key or index, the node that shows its line, the node of its value) of each key or item
    children: Sequence[tuple[str | int, yaml.Node, yaml.Node]] = ()
    if isinstance(node, yaml.MappingNode):
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                line = key_node.start_mark.line + 1
                raise ConfigError(f"{path}, line {line}: a key is a text, not a list or a mapping")
        children = [(key.value, key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        children = [(index, value, value) for index, value in enumerate(node.value)]
    for key, line_node, value in children:
        place = (*parent, key)
        origin = f"line {line_node.start_mark.line + 1}"
        if place in origins:
            name = ".".join(map(str, place))
            raise ConfigError(f"{path}, {origin}: {name} is set again (see {origins[place]}); remove one of them")
        origins[place] = origin
        _note_lines(value, place, origins, path, limit)
