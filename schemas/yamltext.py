"""YAML read within bounds: no aliases that expand without end, no number of any size."""

from typing import Any

import yaml

from .jsontext import MAX_DEPTH, MAX_DIGITS

MAX_BYTES = 4 << 20
"""Of a YAML file. The parser takes some ten seconds a megabyte."""
MAX_NODES = 100_000
"""Keys and values of a YAML file, those that aliases repeat included."""


class BoundError(yaml.MarkedYAMLError):
    """A YAML file is larger than a configuration may be; `problem` says in which way."""


class YamlLoader(yaml.SafeLoader):
    """YAML as people mean it here: 2024-07-26 is text."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as in the class above
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def parse_yaml(text: str) -> tuple[Any, yaml.Node | None]:
    """The data of a YAML text, and the nodes that it was made from, which know their lines.

    Raises:
        yaml.YAMLError: it is not YAML; as a BoundError where it is larger than `MAX_*` allow.
    """
    if len(text) > MAX_BYTES:
        raise BoundError(problem=f"it has more than {MAX_BYTES:,} characters")
    loader = YamlLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None, None
        _count(node, {}, 0)
        return loader.construct_document(node), node
    except RecursionError:
        raise BoundError(problem=f"nested too deeply: at most {MAX_DEPTH} levels") from None
    except ValueError as error:  # `!!int x`, say
        raise yaml.MarkedYAMLError(problem=str(error)) from None
    finally:
        loader.dispose()


def _count(node: yaml.Node, known: dict[int, int], depth: int) -> int:
    """How many nodes a node becomes when its aliases are written out. Looks at each node once."""
    done = known.get(id(node))
    if done == 0:
        raise BoundError(
            problem="an alias (*name) stands inside its own anchor (&name); write it out",
            problem_mark=node.start_mark,
        )
    if done is not None:
        return done
    if depth > MAX_DEPTH:
        raise BoundError(problem=f"nested too deeply: at most {MAX_DEPTH} levels", problem_mark=node.start_mark)
    total, children = 1, []
    if isinstance(node, yaml.MappingNode):
        children = [one for pair in node.value for one in pair]
    elif isinstance(node, yaml.SequenceNode):
        children = list(node.value)
    elif node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float") and len(node.value) > MAX_DIGITS:
        raise BoundError(problem=f"a number of {len(node.value):,} digits", problem_mark=node.start_mark)
    known[id(node)] = 0
    for child in children:
        total += _count(child, known, depth + 1)
        if total > MAX_NODES:
            raise BoundError(
                problem=f"its aliases (*name) repeat more than {MAX_NODES:,} values; write out what is meant",
                problem_mark=node.start_mark,
            )
    known[id(node)] = total
    return total
