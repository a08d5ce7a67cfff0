"""The sandbox for `TrackedStr`: keeps origins, and answers the most common look-ups of templates directly.

jinja2 answers these through exceptions, which is slower; the results are the same.
"""

import operator
from collections.abc import Callable, Iterator
from functools import reduce
from types import BuiltinMethodType, MethodType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import Frame
from jinja2.runtime import Context, LoopContext, Undefined
from jinja2.utils import missing

from ..assistant_turns import CALL, GENERATION, MESSAGE, code_of
from ..environment import BoundedEnvironment, CountingCode, GuardedNamespace, template_of, tojson
from ..limits import require_call
from .tracked_str import TrackedStr, join, owned, owner_of, tracked, words_of

_DICT_NAMES = frozenset(dir(dict))
_LOOP_NAMES = frozenset({"first", "index", "index0", "last", "length", "revindex", "revindex0"})
_SAFE_METHODS = frozenset(
    {
        *("strip", "lstrip", "rstrip", "split", "rsplit", "splitlines", "partition", "rpartition", "startswith"),
        *("endswith", "upper", "lower", "title", "capitalize", "find", "index", "count", "removeprefix"),
        *("removesuffix", "isspace", "isdigit", "isupper", "islower"),
    }
)
"""String methods that can neither leave the sandbox nor make huge results."""
_SCOPES = frozenset({"_loop_vars", "_block_vars"})
"""What generated code passes along with the arguments of a call."""
REACHED_TEST = "reached by the rendering"
"""A test that no template can name: whether a value is the environment's `stop`."""
_COUNTED = 1 << 16
"""Method calls on texts of this many characters or more are checked."""


class OwnedDict(dict[Any, Any]):
    """A tool call, its function or its arguments: a dictionary that remembers its message."""

    __slots__ = ("_code",)  # hidden from templates by the sandbox

    def __init__(self, code: int) -> None:
        self._code = code


def _owner(value: Any) -> int | None:
    """The code of a value that came from one place; for several tool calls of a message, their common code."""
    if type(value) is OwnedDict:
        return value._code
    if type(value) is not list or not value or type(value[0]) is not OwnedDict:
        return owner_of(value)
    code = value[0]._code
    if all(type(item) is OwnedDict and item._code == code for item in value):
        return code
    return code_of(code >> MESSAGE, 0, CALL)


class QuickLoop(LoopContext):
    """The `loop` of a list. It looks items up, so that the next one costs no call of a Python function."""

    _iterable: list[Any]

    def _peek_next(self) -> Any:
        after = self.index0 + 1
        return self._iterable[after] if after < len(self._iterable) else missing

    @property
    def previtem(self) -> Any:
        """See jinja2."""
        return self._iterable[self.index0 - 1] if self.index0 else self._undefined("there is no previous item")


QuickLoop.__name__ = LoopContext.__name__  # a template may print it


def _loop(items: Any, undefined: type[Undefined], *recursive: Any) -> Any:
    """What generated code takes for `LoopContext`: yields the items, each with `loop`."""
    if type(items) is not list or recursive:
        return LoopContext(items, undefined, *recursive)
    return _advance(QuickLoop(items, undefined), items)


def _advance(loop: QuickLoop, items: list[Any]) -> Iterator[tuple[Any, QuickLoop]]:
    for loop.index0, item in enumerate(items):
        yield item, loop


def _added(terms: tuple[Any, ...]) -> tuple[str, ...]:
    """What the output of a sum writes if its terms are not all texts. Terms that are texts are written as they are, and
    so joined once, with all other output.
    """
    total = reduce(operator.add, terms)
    return (total if type(total) is TrackedStr else str(total),)


def _terms(node: nodes.Expr) -> list[nodes.Expr]:
    """The terms of a sum from left to right, neighbouring constants joined; the node itself if it is no sum."""
    if not isinstance(node, nodes.Add):
        return [node]
    terms, last = _terms(node.left), node.right
    if _is_text(last) and _is_text(terms[-1]) and len(terms) > 1:
        last = nodes.Const(terms.pop().value + last.value, lineno=last.lineno)  # type: ignore[attr-defined]
    return [*terms, last]


def _is_text(node: nodes.Expr) -> bool:
    return isinstance(node, nodes.Const) and type(node.value) is str


class _QuickCode(CountingCode):
    """Generates code that looks up keys of plain dictionaries directly, without the environment.

    Where only the truth or the type of a key's value is asked, one object stands for all that are missing.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._asked: set[int] = set()
        """Ids of the expression nodes of which only that is asked."""

    def writeline(self, x: str, *args: Any, **kwargs: Any) -> None:
        """See jinja2. Variables set in loops are not kept for functions that ask for a context: there are none."""
        if x != "_loop_vars = {}":
            super().writeline(x, *args, **kwargs)

    def pop_assign_tracking(self, frame: Frame) -> None:
        """See jinja2, and `writeline`."""
        if frame.loop_frame:
            self._assign_stack.pop()
        else:
            super().pop_assign_tracking(frame)

    def _ask(self, node: nodes.Node) -> None:
        self._asked.add(id(node))
        for inner in node.iter_child_nodes() if isinstance(node, (nodes.And, nodes.Or, nodes.Not)) else ():
            self._ask(inner)

    def visit_If(self, node: nodes.If, frame: Frame) -> None:  # noqa: N802 - jinja2 asks for this name
        """See jinja2."""
        for one in (node, *node.elif_):
            self._ask(one.test)
        super().visit_If(node, frame)

    def visit_Output(self, node: nodes.Output, frame: Frame) -> None:  # noqa: N802
        """See jinja2. Sums of texts are written term by term."""
        plainly = frame.buffer is None and not frame.require_output_check
        if not (plainly and self._writes_plainly(frame, self._make_finalize())):
            super().visit_Output(node, frame)
            return
        others: list[nodes.Expr] = []
        for child in node.nodes:
            terms = _terms(child)
            if len(terms) == 1 or all(isinstance(term, nodes.Const) for term in terms):
                others.append(child)
                continue
            if others:
                super().visit_Output(nodes.Output(others, lineno=node.lineno), frame)
                others = []
            written, texts = "", "True"
            for number, term in enumerate(terms):
                if _is_text(term):
                    written += f"{term.as_const()!r}, "
                    continue
                self.writeline(f"_t{number} = ", child)
                self.visit(term, frame)
                written += f"_t{number}, "
                texts += f" and (_t{number}.__class__ is _TrackedStr or _t{number}.__class__ is _text)"
            self.writeline(f"yield from ({written}) if {texts} else _added(({written}))")
        if others:
            super().visit_Output(nodes.Output(others, lineno=node.lineno), frame)

    def visit_Test(self, node: nodes.Test, frame: Frame) -> None:  # noqa: N802
        """See jinja2. `is string` is answered without a call."""
        if node.name == REACHED_TEST:
            self.write("(")
            self.visit(node.node, frame)
            self.write(" is environment.stop)")
            return
        if node.name != "string" or node.args or node.kwargs or node.dyn_args or node.dyn_kwargs:
            super().visit_Test(node, frame)
            return
        self._ask(node.node)
        self.write("isinstance(")
        self.visit(node.node, frame)
        self.write(", _text)")

    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:  # noqa: N802 - jinja2 asks for this name
        """See jinja2."""
        if node.attr in _DICT_NAMES:
            super().visit_Getattr(node, frame)
        else:
            self._lookup("getattr", node, node.attr, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802
        """See jinja2."""
        if isinstance(node.arg, nodes.Const) and type(node.arg.value) is str:
            self._lookup("getitem", node, node.arg.value, frame)
        else:
            super().visit_Getitem(node, frame)

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:  # noqa: N802
        """See jinja2. Calls safe methods of texts directly; the generated code contains the arguments twice."""
        if isinstance(node.node, nodes.EnvironmentAttribute):  # a hook of ours: no template can name one
            self.write(f"environment.{node.node.name}(")
            for argument in node.args:
                self.visit(argument, frame)
                self.write(", ")
            self.write(")")
            return
        method, plainly = node.node, not (node.kwargs or node.dyn_args or node.dyn_kwargs or forward_caller)
        plainly = plainly and all(isinstance(argument, nodes.Const) for argument in node.args)
        if not plainly or not isinstance(method, nodes.Getattr) or method.attr not in _SAFE_METHODS:
            super().visit_Call(node, frame, forward_caller=forward_caller)
            return
        self.write(f"(_q.{method.attr}(*{tuple(argument.as_const() for argument in node.args)!r}) if ((_q := ")
        self.visit(method.node, frame)
        self.write(
            f").__class__ is _TrackedStr or _q.__class__ is str) and len(_q) < {_COUNTED} else environment.call("
        )
        self.write(f"context, environment.getattr(_q, {method.attr!r})")
        scope = {"_loop_vars": "_loop_vars"} if frame.loop_frame else {}
        self.signature(node, frame, {**scope, **({"_block_vars": "_block_vars"} if frame.block_frame else {})})
        self.write("))")

    def _lookup(self, how: str, node: nodes.Getattr | nodes.Getitem, key: str, frame: Frame) -> None:
        # One name suffices, because it is read before any other code can set it.
        missing = "_nothing" if id(node) in self._asked else f"environment.undefined(obj=_q, name={key!r})"
        if key in _DICT_NAMES:
            missing = f"environment.{how}(_q, {key!r})"
        self.write(f"((_q[{key!r}] if {key!r} in _q else {missing}) if (_q := ")
        self.visit(node.node, frame)
        other = ""
        if how == "getattr" and key in _LOOP_NAMES:
            other = f"_q.{key} if _q.__class__ is _Loop else "
        elif how == "getattr" and not key.startswith("_"):
            other = f"_q.{key} if _q.__class__ is _Namespace and {key!r} in _q.__dict__ else "
        self.write(f").__class__ is dict else {other}environment.{how}(_q, {key!r}))")

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        if self._writes_plainly(frame, finalize):
            self.write("(_s if (_s := ")
        else:
            super()._output_child_pre(node, frame, finalize)

    def _output_child_post(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        if self._writes_plainly(frame, finalize):
            self.write(").__class__ is _TrackedStr or _s.__class__ is _text else str(_s))")
        else:
            super()._output_child_post(node, frame, finalize)

    @staticmethod
    def _writes_plainly(frame: Frame, finalize: Any) -> bool:
        """Whether output is converted only by `str`, which is slow for `TrackedStr`."""
        return not frame.eval_ctx.volatile and not frame.eval_ctx.autoescape and finalize.src is None


class TrackingEnvironment(BoundedEnvironment):
    """The sandbox with faster look-ups and tracked strings."""

    code_generator_class = _QuickCode
    concat = staticmethod(join)
    blocks: int
    stop: Any = None
    """See `SharedPrompt`."""
    kept: dict[int, tuple[int, dict[str, TrackedStr]]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.blocks = 0
        self.kept = {}
        """Tools that `Marker` keeps, by `id`: their code, and their JSON for each set of options."""

        def generation(text: str) -> str:
            self.blocks += 1
            block = (0, len(text), GENERATION)
            return tracked(text, (*words_of(text), block))

        self.generation = generation

    def keep(self, value: Any, code: int) -> None:
        """Remember a value that stays alive, so that its JSON is made once and tracked."""
        self.kept[id(value)] = (code, {})

    def compile(self, *args: Any, **kwargs: Any) -> Any:
        """See jinja2."""
        filters: dict[str, Any] = self.filters
        filters["tojson"] = self._tojson
        filters["join"] = _joined(filters["join"])
        return super().compile(*args, **kwargs)

    def _tojson(self, value: Any, *args: Any, **kwargs: Any) -> str:
        kept = self.kept.get(id(value))
        if kept is not None:
            options = repr((args, kwargs))  # not as keys: 1 and 1.0 are equal, and lists cannot be keys
            code, texts = kept
            if options not in texts:
                texts[options] = owned(tojson(value, *args, **kwargs), code)
            return texts[options]
        text = tojson(value, *args, **kwargs)
        owner = _owner(value)
        return text if owner is None else owned(text, owner)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """See jinja2."""
        kind = type(obj)
        if kind is dict or kind is OwnedDict:
            if attribute not in _DICT_NAMES:
                return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        elif kind is QuickLoop or kind is LoopContext or kind is GuardedNamespace:
            if not attribute.startswith("_"):
                try:
                    return getattr(obj, attribute)
                except AttributeError:
                    pass
        elif (kind is str or kind is TrackedStr) and attribute in _SAFE_METHODS:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def call(__self, __context: Context, __callee: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """See jinja2."""
        if __callee is GuardedNamespace and kwargs.keys().isdisjoint(_SCOPES):
            require_call(__callee, args, kwargs)
            return GuardedNamespace(*args, **kwargs)
        kind = type(__callee)
        if (kind is BuiltinMethodType or kind is MethodType) and not kwargs:
            subject = type(__callee.__self__)
            small = (subject is str or subject is TrackedStr) and len(__callee.__self__) < _COUNTED
            if small and __callee.__name__ in _SAFE_METHODS:
                return __callee(*args)
        return super().call(__context, __callee, *args, **kwargs)


def quick_template(environment: TrackingEnvironment, code: Any) -> jinja2.Template:
    """The template of code that this environment generated."""
    template = template_of(environment, code)
    template.root_render_func.__globals__.update(
        {
            "LoopContext": _loop,
            "_Loop": QuickLoop,
            "_Namespace": GuardedNamespace,
            "_TrackedStr": TrackedStr,
            "_added": _added,
            "_loop_vars": None,
            "_nothing": environment.undefined(),
            "_text": str,
        }
    )
    return template


def _joined(inner: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(context: Any, value: Any, d: Any = "", attribute: Any = None) -> Any:
        if attribute is None and not context.autoescape:
            value = value if isinstance(value, (list, tuple, str)) else list(value)
            if type(d) is str and isinstance(value, (list, tuple)) and any(type(item) is TrackedStr for item in value):
                texts = [item if isinstance(item, str) else str(item) for item in value]
                return join(texts, d)
        return inner(context, value, d, attribute)

    wrapper.jinja_pass_arg = inner.jinja_pass_arg  # type: ignore[attr-defined]
    return wrapper
