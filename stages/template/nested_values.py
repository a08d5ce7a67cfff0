"""Detects templates that can build lists which contain the same values many times over.

Comparing or printing such a list is a single, practically endless Python instruction that no timer in the process can
interrupt: `[x, x]` nested forty times has a million million leaves. Only another process can stop that.
"""

from functools import lru_cache

from jinja2 import TemplateSyntaxError, nodes

from .environment import BoundedEnvironment, make_environment

_NESTING_FILTERS = frozenset({"batch", "slice", "groupby"})
_NESTING_NAMES = frozenset({"dict", "varargs", "kwargs"})


@lru_cache(maxsize=16)
def nests_values(source: str) -> bool:
    """Whether a template may put a computed value into a list, a tuple or a dictionary. May give false positives."""
    try:
        return _nests(make_environment(BoundedEnvironment, "", None).parse(source))
    except (TemplateSyntaxError, RecursionError):
        return False  # does not compile; `ChatTemplate` reports that


def _nests(tree: nodes.Template) -> bool:
    for literal in tree.find_all((nodes.List, nodes.Tuple, nodes.Dict)):
        if getattr(literal, "ctx", "load") == "load" and not _is_constant(literal):
            return True
    if any(one.name in _NESTING_FILTERS for one in tree.find_all(nodes.Filter)):
        return True
    return any(one.ctx == "load" and one.name in _NESTING_NAMES for one in tree.find_all(nodes.Name))


def _is_constant(literal: nodes.Node) -> bool:
    """Whether an expression contains only texts and numbers; constant lists in it are checked separately."""
    return all(
        isinstance(item, (nodes.Const, nodes.TemplateData, nodes.List, nodes.Tuple, nodes.Dict, nodes.Pair))
        and _is_constant(item)
        for item in literal.iter_child_nodes()
    )
