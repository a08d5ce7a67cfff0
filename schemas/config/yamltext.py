"""Reads YAML within limits on nesting, aliases and numbers."""

from typing import Any

import yaml

from ..jsontext import MAX_DEPTH, MAX_DIGITS

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
        _Bounds().count(node)
        return loader.construct_document(node), node
    except RecursionError:
        raise BoundError(problem=f"nested too deeply: at most {MAX_DEPTH} levels") from None
    except ValueError as error:  # such as `!!int x`
        raise yaml.MarkedYAMLError(problem=str(error)) from None
    finally:
        loader.dispose()


class _Bounds:
    """Checks nodes against the limits; visits each node once."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        """By id of the node: how many nodes it has with its aliases written out; 0 while it is being counted."""
        self._repeated = 0

    def count(self, node: yaml.Node, depth: int = 0) -> int:
        """How many nodes a node has with its aliases written out."""
        done = self._sizes.get(id(node))
        if done == 0:
            raise BoundError(
                problem="an alias (*name) stands inside its own anchor (&name); write it out",
                problem_mark=node.start_mark,
            )
        if done is not None:
            self._repeated += done
            if self._repeated > MAX_REPEATED:
                raise BoundError(
                    problem=f"its aliases (*name) repeat more than {MAX_REPEATED:,} values; write out what is meant",
                    problem_mark=node.start_mark,
                )
            return done
        if depth > MAX_DEPTH:
            raise BoundError(problem=f"nested too deeply: at most {MAX_DEPTH} levels", problem_mark=node.start_mark)
        children: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            children = [one for pair in node.value for one in pair]
        elif isinstance(node, yaml.SequenceNode):
            children = list(node.value)
        elif node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float") and len(node.value) > MAX_DIGITS:
            raise BoundError(problem=f"a number of {len(node.value):,} digits", problem_mark=node.start_mark)
        self._sizes[id(node)] = 0
        self._sizes[id(node)] = total = 1 + sum(self.count(child, depth + 1) for child in children)
        return total
