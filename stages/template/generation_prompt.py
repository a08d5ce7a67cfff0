"""What a template's generation prompt depends on, as its source shows."""

from collections.abc import Iterator

from jinja2 import nodes

_SWITCH = "add_generation_prompt"
_OF_A_ROW = frozenset({"messages", "tools", "documents", "loop", "caller", "varargs", "kwargs", "self"})
"""Names whose values differ between rows, besides those that the template itself sets."""


def has_fixed_prompt(tree: nodes.Template) -> bool:
    """Whether the generation prompt is the same after every conversation: the switch is used only in conditions at the
    template's top level, whose text depends on nothing but the configuration's variables.
    """
    branches = [node for node in tree.body if isinstance(node, nodes.If) and _uses(node.test)]
    if sum(map(_uses, branches)) != _uses(tree):
        return False  # it is used elsewhere, too: in a loop or an assignment
    of_rows = _OF_A_ROW | _assigned(tree)
    return not any(name.name in of_rows for branch in branches for name in _names(branch))


def searched_texts(tree: nodes.Template) -> frozenset[str]:
    """The literals that a template looks for, such as `/no_think` in `'/no_think' in message.content`: in two contents
    that both lack one, or both contain it, the template sees the same of it.
    """
    return frozenset(_searched(tree))


def _searched(tree: nodes.Template) -> Iterator[str]:
    values: list[nodes.Node] = []
    for comparison in tree.find_all(nodes.Compare):
        if any(operand.op in ("in", "notin") for operand in comparison.ops):
            values.append(comparison.expr)
    for call in tree.find_all(nodes.Call):
        values += call.args
    for applied in tree.find_all(nodes.Filter):
        values += applied.args
    yield from (value.value for value in values if isinstance(value, nodes.Const) and isinstance(value.value, str))


def _names(node: nodes.Node) -> Iterator[nodes.Name]:
    """The names in a part of a template."""
    yield from [node] if isinstance(node, nodes.Name) else node.find_all(nodes.Name)


def _uses(node: nodes.Node) -> int:
    """How often a part of a template uses the switch."""
    return sum(name.name == _SWITCH for name in _names(node))


def _assigned(tree: nodes.Template) -> set[str]:
    """The names to which a template gives values."""
    stored = {name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"}
    return stored | {macro.name for macro in tree.find_all(nodes.Macro)}
