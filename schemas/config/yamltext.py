"""Reads YAML within limits on nesting and aliases."""

from typing import Any

import yaml

from ..jsontext import MAX_DEPTH

MAX_BYTES = 4 << 20
"""Maximum number of bytes of a YAML file. The parser takes about ten seconds per megabyte."""
MAX_REPEATED = 100_000
"""Maximum number of keys and values that aliases of a YAML file repeat."""


class BoundError(yaml.MarkedYAMLError):
    """A YAML file exceeds a limit; `problem` says which."""


class YamlLoader(yaml.SafeLoader):
    """YAML without dates: 2024-07-26 is text."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as in the class above
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def parse_yaml(text: str) -> tuple[Any, yaml.Node | None]:
    """The data of a YAML text, and its nodes, which know their lines.

    Raises:
        yaml.YAMLError: it is not YAML; a BoundError if it exceeds the `MAX_*` limits.
    """
    if len(text) > MAX_BYTES:
        raise BoundError(problem=f"it has more than {MAX_BYTES:,} characters")
    loader = YamlLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None, None
        _check_size(node, len(text) + MAX_REPEATED)
        return loader.construct_document(node), node
    except RecursionError:
        raise BoundError(problem=f"nested too deeply: at most {MAX_DEPTH} levels") from None
    except ValueError as error:  # such as `!!int x`
        raise yaml.MarkedYAMLError(problem=str(error)) from None
    finally:
        loader.dispose()


def _check_size(node: yaml.Node, most: int) -> None:
    """Raise BoundError if there are more than so many nodes or `MAX_DEPTH` levels, with all aliases written out."""
    waiting, count = [(node, 0)], 0
    while waiting:
        one, depth = waiting.pop()
        count += 1
        if depth > MAX_DEPTH:
            fix = "an alias (*name) may not stand inside its own anchor (&name)"
            raise BoundError(
                problem=f"nested too deeply: at most {MAX_DEPTH} levels; {fix}", problem_mark=one.start_mark
            )
        if count > most:
            raise BoundError(
                problem=f"its aliases (*name) repeat more than {MAX_REPEATED:,} values; write out what is meant"
            )
        if isinstance(one, yaml.MappingNode):
            waiting += [(child, depth + 1) for pair in one.value for child in pair]
        elif isinstance(one, yaml.SequenceNode):
            waiting += [(child, depth + 1) for child in one.value]
