"""Which templates can build lists that hold each other's parts again and again.

Comparing or printing such a list is one instruction of Python without an end, in which nothing in the process hears a
timer: `[x, x]` forty times has a million million leaves. Only another process can end that.
"""

from jinja2 import TemplateSyntaxError, nodes

from .template import BoundedEnvironment, make_environment

_NESTING_FILTERS = frozenset({"batch", "slice", "groupby"})
_NESTING_NAMES = frozenset({"dict", "varargs", "kwargs"})


def nests_values(source: str) -> bool:
    """Whether a template may put a computed value into a list, a tuple or a dictionary. May say so wrongly."""
    try:
        tree = make_environment(BoundedEnvironment, "", None).parse(source)
    except TemplateSyntaxError:
        return False  # it renders nothing; `ChatTemplate` refuses it in words
    for literal in tree.find_all((nodes.List, nodes.Tuple, nodes.Dict)):
        if getattr(literal, "ctx", "load") == "load" and not _is_constant(literal):
            return True
    if any(one.name in _NESTING_FILTERS for one in tree.find_all(nodes.Filter)):
        return True
    return any(one.ctx == "load" and one.name in _NESTING_NAMES for one in tree.find_all(nodes.Name))


def _is_constant(literal: nodes.Node) -> bool:
    """Whether it holds texts and numbers alone; constant lists in it are judged by themselves."""
    return all(
        isinstance(item, (nodes.Const, nodes.TemplateData, nodes.List, nodes.Tuple, nodes.Dict, nodes.Pair))
        and _is_constant(item)
        for item in literal.iter_child_nodes()
    )
