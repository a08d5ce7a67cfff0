"""Renders the prompt of a conversation that was just rendered as a whole, without rendering its messages again.

Most templates are one loop over the messages, with something before it (system, tools, a look at the last question) and
something after it (the generation prompt). Rendered for the prompt alone, the loop takes the steps that it took in the
whole conversation, up to the message that the prompt lacks, provided that

- it begins with the same values, of every variable of the template that it reads and every attribute of a namespace;
- it goes through the same messages, as objects, before that one;
- until then it looked at nothing that differs: `loop.last` and `loop.nextitem` before the last message of the prompt,
  and items of `messages` that both have. A template whose loop uses other attributes of `loop`, `messages` otherwise,
  or `add_generation_prompt`, is not divided.

The loop may call macros, if they use none of these, and have `{% generation %}` blocks. What macros read counts as read
by the loop.

So the loop's text is copied, namespaces get the values that they had at that message, and only what comes before and
after the loop is rendered. If a condition does not hold, the prompt is rendered as usual. One rendering of the
conversation serves the prompts of several of its turns.
"""

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from types import CodeType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.runtime import LoopContext, Undefined
from jinja2.visitor import NodeTransformer

from ....schemas.rows import Messages
from ..assistant_turns import Word
from ..environment import GuardedNamespace
from ..limits import steps_left, take_steps
from .environment import REACHED_TEST, TrackingEnvironment, quick_template
from .tracked_str import TrackedStr, tracked

_ENTERED = -(1 << 40)
"""The code of the empty word where the loop begins; less than the codes of tools."""
_REACHED = _ENTERED - 1
"""The code of the empty word before the text of the first message that a prompt lacks."""
_SAME = frozenset({"first", "index", "index0", "previtem"})
"""Attributes of `loop` that are the same in the prompt."""
_LATE = frozenset({"last", "nextitem"})
"""Attributes of `loop` that may differ at the last message of the prompt."""
_WHOLE_ONLY = (
    *(nodes.Block, nodes.Extends, nodes.Import, nodes.FromImport, nodes.Include),
    *(nodes.EvalContextModifier, nodes.ScopedEvalContextModifier, nodes.FilterBlock),
)
"""What a template that is divided does not have: code that may see more than the names that stand in it."""
_RESERVED = frozenset({"loop", "add_generation_prompt", "self", "super", "caller", "varargs", "kwargs"})
_MAX_ITEMS = 4096
_CODES: dict[str, tuple[CodeType, CodeType] | None] = {}
_MOST_CODES = 16
_HOOKS = ("entered", "reached", "late", "item", "resumed")


class CannotShareError(BaseException):
    """The prompt must be rendered as usual. Not an `Exception`, so that nothing takes it for the template's."""


class _UndividedError(Exception):
    """The loop may depend on more than `SharedPrompt` compares."""


@dataclass(slots=True)
class _Reached:
    """What the rendering of a conversation showed where one of its prompts ends."""

    namespaces: list[dict[str, Any] | None]
    """The attributes of each namespace among the variables of the loop."""
    steps: int
    """Steps that the loop took."""
    fits: bool
    """Whether the loop took the same steps as for the prompt alone, if it begins alike."""


class SharedPrompt:
    """The two parts of a template, and what the last conversation showed.

    Args:
        environment: its own; the hooks of the generated code are set there.
        whole, rest: the template with hooks, and what is left of it without the loop.
    """

    def __init__(self, environment: TrackingEnvironment, whole: jinja2.Template, rest: jinja2.Template) -> None:
        self.whole = whole
        self.rest = rest
        self._environment = environment
        self._chat: Messages = []
        self._cuts: list[int] = []
        self._late = False
        self._furthest = 0
        self._items: list[Any] | None = None
        self._entry: list[Any] = []
        self._reached: list[_Reached] = []
        self._steps = 0
        self._text = ""
        self._places: list[int] = []
        self._number = 0
        for name in _HOOKS:
            setattr(environment, name, getattr(self, name))

    @classmethod
    def of(cls, environment: TrackingEnvironment, source: str) -> "SharedPrompt | None":
        """The parts of a template, or None if it cannot be divided."""
        codes = _codes(source, environment)
        return codes and cls(environment, *(quick_template(environment, code) for code in codes))

    def begin(self, chat: Messages, cuts: Iterable[int]) -> None:
        """Begin the rendering of a whole conversation.

        Args:
            chat: every message is an object of its own.
            cuts: numbers of messages that prompts have: ascending, from 1 to one less than all.
        """
        self._chat, self._cuts = chat, list(cuts)
        self._environment.stop = chat[self._cuts[0]]
        self._late, self._furthest = False, 0
        self._reached, self._places = [], []

    def resume(self, prompt: Messages) -> bool:
        """Begin the rendering of a prompt. Returns False if it is none of those of the conversation rendered last, or
        the loop did not go so far.
        """
        known = self._cuts[: len(self._reached)] if self._places else ()  # there are none of a rendering that failed
        if len(prompt) not in known or prompt[0] is not self._chat[0]:
            return False
        self._number = self._cuts.index(len(prompt))
        return True

    def end(self, text: str, words: list[Word]) -> None:
        """Take note of the whole text.

        Args:
            words: sorted; those of the hooks are among them.
        """
        self._text, self._places = text, [begin for begin, _, code in words if code <= _ENTERED]

    def entered(self, items: Any, state: tuple[Any, ...]) -> TrackedStr:
        """Called before the loop, with the list that it goes through, and the variables that it reads."""
        once = type(items) is list and len(set(map(id, items))) == len(items)
        self._items = items if once else None
        self._entry = [dict(one.__dict__) if type(one) is GuardedNamespace else one for one in state]
        self._steps = steps_left()
        return tracked("", ((0, 0, _ENTERED),))

    def reached(self, state: tuple[Any, ...]) -> TrackedStr:
        """Called in the loop, at the first message that a prompt lacks, with the same variables."""
        number = len(self._reached)
        held = [dict(one.__dict__) if type(one) is GuardedNamespace else None for one in state]
        fits = not self._late and self._furthest < self._cuts[number]
        self._reached.append(_Reached(held, self._steps - steps_left(), fits))
        self._late = False
        rest = self._cuts[number + 1 :]
        self._environment.stop = self._chat[rest[0]] if rest else self  # self is in no chat, so no loop stops
        return tracked("", ((0, 0, _REACHED),))

    def late(self, loop: LoopContext, name: str) -> Any:
        """An attribute of `loop` that differs at the last message of a prompt."""
        if loop.nextitem is self._environment.stop:
            self._late = True
        return self._environment.getattr(loop, name)

    def item(self, messages: Any, index: Any) -> Any:
        """An item of `messages`, which a prompt has too, or it is noted."""
        self._furthest = max(self._furthest, index if type(index) is int and index >= 0 else len(self._chat))
        return self._environment.getitem(messages, index)

    def resumed(self, items: Any, state: tuple[Any, ...]) -> str:
        """Called in place of the loop: its text, from the whole conversation.

        Raises:
            CannotShareError: the loop may take other steps than it took there.
        """
        whole, reached = self._items, self._reached[self._number]
        if whole is None or not reached.fits or type(items) is not list:
            raise CannotShareError
        size, stop = len(items), self._chat[self._cuts[self._number]]
        if len(whole) <= size or whole[size] is not stop or not all(map(operator.is_, items, whole)):
            raise CannotShareError
        for one, before in zip(state, self._entry, strict=True):
            if not _alike(one.__dict__ if type(one) is GuardedNamespace else one, before, top=True):
                raise CannotShareError
        for one, values in zip(state, reached.namespaces, strict=True):
            if values is not None:
                object.__setattr__(one, "__dict__", dict(values))
        take_steps(reached.steps)
        return self._text[self._places[0] : self._places[self._number + 1]]


def _alike(one: Any, other: Any, *, top: bool = False) -> bool:
    """Whether a template cannot tell two values apart. May give false negatives.

    Args:
        top: whether dictionaries are attributes of a namespace, and compared by their values.
    """
    if one is other:
        return True
    if isinstance(one, str):
        return isinstance(other, str) and one == other
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is int or kind is bool:
        return bool(one == other)
    if kind is float:
        return repr(one) == repr(other)
    if kind is list or kind is tuple:
        return len(one) == len(other) <= _MAX_ITEMS and all(
            not isinstance(mine, (list, tuple)) and _alike(mine, its) for mine, its in zip(one, other, strict=True)
        )
    if kind is dict and top:
        return list(one) == list(other) and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, Undefined):
        return bool(one._undefined_name == other._undefined_name)
    return False


def _codes(source: str, environment: TrackingEnvironment) -> tuple[CodeType, CodeType] | None:
    """The generated code of the two parts of a template, or None if it cannot be divided; made once."""
    if source not in _CODES:
        if len(_CODES) >= _MOST_CODES:
            _CODES.clear()
        try:
            whole, rest = _parts(environment, source)
        except _UndividedError:
            _CODES[source] = None
        else:
            _CODES[source] = environment.compile(whole), environment.compile(rest)
    return _CODES[source]


def _parts(environment: TrackingEnvironment, source: str) -> tuple[nodes.Template, nodes.Template]:
    """The template with hooks, and the template with its loop's text taken from the whole conversation.

    Raises:
        _UndividedError: it cannot be divided.
    """
    whole, rest = environment.parse(source), environment.parse(source)
    if any(whole.find(kind) for kind in _WHOLE_ONLY):
        raise _UndividedError
    places = [place for place, node in enumerate(whole.body) if isinstance(node, nodes.For) and _goes(node.iter)]
    if not places:
        raise _UndividedError
    place = places[-1]
    loop, macros = whole.body[place], _macros(whole)
    assert isinstance(loop, nodes.For)
    if loop.recursive or loop.test is not None or loop.else_ or not isinstance(loop.target, nodes.Name):
        raise _UndividedError
    stored = _stored(whole)
    if stored & (_RESERVED | {macro.name for macro in macros}):
        raise _UndividedError
    read = {name.name for node in (*loop.body, *macros) for name in node.find_all(nodes.Name)}
    read |= {name.name for node in (*loop.body, *macros) for name in node.find_all(nodes.NSRef)}
    before = set[str]().union(*map(_stored, whole.body[:place]))
    state = nodes.Tuple([nodes.Name(name, "load") for name in sorted(read & before)], "load")
    for macro in macros:
        _Watch(plain=True, within=False).visit(macro)
    watch = _Watch(plain="messages" in stored)
    body = [watch.visit(node) for node in loop.body]
    target = nodes.Name(loop.target.name, "load")
    reached = nodes.Test(target, REACHED_TEST, [], [], None, None)
    loop.body = [nodes.If(reached, [nodes.Output([_hook("reached", state)])], [], []), *body]
    whole.body.insert(place, nodes.Output([_hook("entered", loop.iter, state)]))
    its = rest.body[place]
    assert isinstance(its, nodes.For)
    rest.body[place] = nodes.Output([_hook("resumed", its.iter, state)])
    for tree in (whole, rest):
        tree.set_lineno(1)
        tree.set_environment(environment)
    return whole, rest


def _macros(tree: nodes.Template) -> list[nodes.Macro]:
    """The macros of a template, each of which is the same whenever it is called.

    Raises:
        _UndividedError: one may not be, or there is a call block other than `{% generation %}`.
    """
    macros = [node for node in tree.body if isinstance(node, nodes.Macro)]
    if len({macro.name for macro in macros}) < len(list(tree.find_all(nodes.Macro))):
        raise _UndividedError
    blocks = tree.find_all(nodes.CallBlock)
    if not all(isinstance(block.call.node, nodes.ExtensionAttribute) for block in blocks):
        raise _UndividedError
    return macros


def _goes(iterated: nodes.Node) -> bool:
    """Whether a loop may go through the messages: a variable, or a slice of one."""
    if isinstance(iterated, nodes.Getitem) and isinstance(iterated.arg, nodes.Slice):
        iterated = iterated.node
    return isinstance(iterated, nodes.Name) and iterated.name != "tools"


def _stored(node: nodes.Node) -> set[str]:
    """The variables that code sets."""
    return {name.name for name in node.find_all(nodes.Name) if name.ctx != "load"}


def _hook(name: str, *arguments: nodes.Node) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), list(arguments), [], None, None)


class _Watch(NodeTransformer):
    """Lets the body of the loop report what it looks at that a prompt may not have.

    Args:
        plain: whether the template sets `messages` itself; the body must then not name it.
        within: whether the nodes stand in the loop; else they must not name its `loop`.
    """

    def __init__(self, *, plain: bool, within: bool = True) -> None:
        self._plain = plain
        self._within = within
        self._nested = 0

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - jinja2 asks for this name
        """A loop in the loop, with a `loop` of its own."""
        node.iter = self.visit(node.iter)
        node.else_ = [self.visit(inner) for inner in node.else_]
        if node.test is not None and any(name.name == "loop" for name in _names(node.test)):
            raise _UndividedError
        self._nested += 1
        node.body = [self.visit(inner) for inner in node.body]
        node.test = self.visit(node.test) if node.test is not None else None
        self._nested -= 1
        return node

    def visit_Getattr(self, node: nodes.Getattr) -> nodes.Node:  # noqa: N802
        """An attribute, perhaps of `loop`."""
        if not isinstance(node.node, nodes.Name) or node.node.name != "loop" or self._nested:
            return self.generic_visit(node)
        if node.attr in _LATE and self._within:
            return _hook("late", node.node, nodes.Const(node.attr))
        if node.attr not in _SAME or not self._within:
            raise _UndividedError
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        """An item, perhaps of `messages`."""
        of_messages = isinstance(node.node, nodes.Name) and node.node.name == "messages"
        if not of_messages or self._plain or isinstance(node.arg, nodes.Slice):
            return self.generic_visit(node)
        return _hook("item", node.node, self.visit(node.arg))

    def visit_Name(self, node: nodes.Name) -> nodes.Node:  # noqa: N802
        """A name that stands alone."""
        if node.name == "messages" or (node.name in _RESERVED and not (node.name == "loop" and self._nested)):
            raise _UndividedError
        return node


def _names(node: nodes.Node) -> list[nodes.Name]:
    return [*([node] if isinstance(node, nodes.Name) else []), *node.find_all(nodes.Name)]
