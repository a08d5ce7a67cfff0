"""The speed path of rendering: a template specialised to one pattern of roles.

A trace is made by rendering a row once with symbols for contents. It then is a short program: guards that a
row must answer as the guiding row did, operations on contents, and the parts that are joined. A row whose
guards hold takes the path through the template that the guiding row took, so that its text is the join.

Soundness rests on the environment below: jinja2 lets it see every call, attribute, filter, test, `%`, `in`
and join of a template, and it aborts where a content would reach code that cannot report what it looks at.
"""

from collections.abc import Callable, Collection, Mapping
from functools import wraps
from itertools import chain
from typing import Any

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.runtime import BlockReference, Context, LoopContext, Macro, Undefined
from jinja2.visitor import NodeTransformer

from ..schemas.errors import PacktrainError
from ..schemas.rows import Messages
from .bounded import TemplateLimitError
from .compiled import CLOSE, OPEN, Compiler, Trace, compile_steps
from .symbol import MARK, UNDERSTOOD, Atoms, Record, Symbol, SymbolParts, TraceAbortedError, concat
from .template import (
    BoundedEnvironment,
    ChatTemplate,
    DictMaker,
    GuardedNamespace,
    compile_template,
    make_environment,
)
from .turns import Manner

# Filters that hand contents on without looking at them, or look only through methods of Symbol.
_FILTERS_ANY = frozenset(
    {
        *(
            "count",
            "d",
            "default",
            "first",
            "last",
            "length",
            "list",
            "map",
            "reject",
            "rejectattr",
            "reverse",
        ),
        *("select", "selectattr", "string"),
    }
)
# Filters that call one method of their subject; the other arguments must be literal.
_FILTERS_METHOD = frozenset({"capitalize", "lower", "replace", "trim", "upper"})
# Tests that look only at the type, which is `str` for every content of a pattern.
_TESTS_TYPE = frozenset(
    {
        *("boolean", "callable", "defined", "escaped", "false", "float", "integer", "iterable", "mapping"),
        *("none", "number", "sequence", "string", "true", "undefined"),
    }
)
# Tests that compare with `==`, which Symbol answers.
_TESTS_EQUAL = frozenset({"==", "eq", "equalto", "!=", "ne"})
_SELF_CHECKING = (Symbol, Extension, LoopContext, list, tuple, dict)


class Tracer:
    """Makes traces of one template.

    Raises:
        TraceAbortedError: the template uses something that can never be traced.
    """

    def __init__(self, template: ChatTemplate, manner: Manner, allow_lost: Collection[str] = ()) -> None:
        self._template = template
        self._allow_lost = allow_lost
        self._manner = manner
        environment = make_environment(_TracingEnvironment, template.name, template.date)
        assert isinstance(environment, _TracingEnvironment)
        self._environment = environment
        tree = self._environment.parse(template.source)
        # Escaping is done by C code on the bare characters.
        if tree.find(nodes.EvalContextModifier):
            raise TraceAbortedError("the template switches escaping")
        self._compiled = compile_template(self._environment, _InAsTest().visit(tree))

    def trace(self, roles: tuple[str, ...], contents: list[str], prompt: int) -> Trace:
        """The path of a row.

        It depends on the contents by its guards alone: every row for which they hold has this path. So it does not
        matter which of them was traced, nor when. One on which the template does what cannot be traced, or refuses
        the row, renders nothing.

        Args:
            roles: one per message.
            contents: one per message, exact `str`.
            prompt: how many of the messages are the prompt.

        Raises:
            TemplateLimitError: the template was stopped; that says nothing of other rows.
        """
        record = Record(contents)
        try:
            return self._trace(record, roles, prompt)
        except TraceAbortedError as error:
            if isinstance(error.__cause__, PacktrainError) and isinstance(
                error.__cause__.__cause__, TemplateLimitError
            ):
                raise error.__cause__.__cause__ from error
            return Trace(*compile_steps(record, len(roles))[:2], why_not=str(error))

    def _trace(self, record: Record, roles: tuple[str, ...], prompt: int) -> Trace:
        chat: Messages = [
            _Message(record, {"role": role, "content": record.symbol(index)}) for index, role in enumerate(roles)
        ]
        text = self._render(record, chat, add_generation_prompt=False)
        blocks = record.blocks
        heads: dict[int, Atoms] = {}

        def head(index: int) -> Atoms:
            if index not in heads:
                heads[index] = self._render(record, chat[:index], add_generation_prompt=True)
            return heads[index]

        return Compiler(record, roles, prompt, text, blocks, self._manner, head, self._allow_lost).trace()

    def _render(self, record: Record, chat: Messages, *, add_generation_prompt: bool) -> Atoms:
        inputs = self._template.inputs(chat, None, add_generation_prompt=add_generation_prompt)
        self._environment.record = record

        def render() -> str:
            record.blocks = 0
            return concat(self._compiled.root_render_func(self._compiled.new_context(inputs)))

        try:
            text = self._template.guarded(render)
        except Exception as error:  # whatever it is, jinja2 will say it again, to the row
            raise TraceAbortedError(record.aborted or f"{type(error).__name__}: {error}") from error
        atoms: Atoms = text.atoms if isinstance(text, Symbol) else (text,)
        literals = chain(atoms, *(step.args for step in record.steps))
        if record.aborted or any(MARK in literal for literal in literals if isinstance(literal, str)):
            raise TraceAbortedError(record.aborted or "a content passed through code that is not traced")
        return atoms


_MAX_LOOKED = 100_000
"""Items of a value that are looked at for contents; lists that hold others many times would have no end."""


class _InAsTest(NodeTransformer):
    """Rewrites `a in b` as `a is in(b)`: an operator of Python cannot be watched, a test can."""

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802 - jinja2 asks for this name
        self.generic_visit(node)
        if not any(operand.op in ("in", "notin") for operand in node.ops):
            return node
        if len(node.ops) > 1:
            raise TraceAbortedError("the template chains `in` with other comparisons")
        test = nodes.Test(node.expr, "in", [node.ops[0].expr], [], None, None, lineno=node.lineno)
        return test if node.ops[0].op == "in" else nodes.Not(test, lineno=node.lineno)


class _Message(dict[str, Any]):
    """A message whose keys cannot be listed: rows may have `role` and `content` in either order."""

    def __init__(self, record: Record, message: Mapping[str, Any]) -> None:
        super().__init__(message)
        self._abort = record.abort

    def _listed(self, *_args: Any) -> Any:
        self._abort("the keys of a message are listed")

    __iter__ = keys = items = values = copy = __reversed__ = __repr__ = _listed
    __or__ = __ror__ = _listed


class _TracingEnvironment(BoundedEnvironment):
    """Watches what a template does; what it renders is what the ordinary environment renders."""

    concat = staticmethod(concat)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.record: Record | None = None
        """Of the trace that is being made."""

        def generation(text: str) -> str:
            record = self.record
            assert record is not None
            record.blocks += 1
            return concat((Symbol(record, (OPEN,)), text, Symbol(record, (CLOSE,))))

        self.generation = generation

    def compile(self, *args: Any, **kwargs: Any) -> Any:
        filters: dict[str, Any] = self.filters  # the stubs name a type that no function has
        tests: dict[str, Any] = self.tests
        for name in set(filters) - _FILTERS_ANY:
            filters[name] = _literal_only(filters[name], subjects=int(name in _FILTERS_METHOD))
        for name in set(tests) - _TESTS_EQUAL:
            watch = _of_type if name in _TESTS_TYPE else _literal_only
            tests[name] = watch(tests[name])
        tests["in"] = _is_in
        return super().compile(*args, **kwargs)

    def call(__self, __context: Context, __callee: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        checks_itself = (
            isinstance(__callee, (Macro, LoopContext, BlockReference, DictMaker))
            or __callee is GuardedNamespace
            or isinstance(getattr(__callee, "__self__", None), _SELF_CHECKING)
        )
        if not checks_itself:
            _require_literal(args)
            # jinja2's own: the variables of the scope, for functions that ask for a context. There are none.
            inner = ("_loop_vars", "_block_vars")
            _require_literal({key: value for key, value in kwargs.items() if key not in inner})
        return super().call(__context, __callee, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _require_literal((left, right))
        return super().call_binop(context, operator, left, right)

    def getitem(self, obj: Any, argument: Any) -> Any:
        _require_literal(argument)
        if isinstance(obj, Symbol):
            # A text has no item of that name: templates ask so whether a content is a list of parts.
            return self.getattr(obj, argument) if isinstance(argument, str) else obj[argument]
        return super().getitem(obj, argument)

    def getattr(self, obj: Any, attribute: str) -> Any:
        _require_literal(attribute)
        if isinstance(obj, SymbolParts):
            return obj.__len__()  # aborts
        if isinstance(obj, Symbol):
            if attribute in UNDERSTOOD:
                return getattr(obj, attribute)
            if hasattr(str, attribute):
                obj.record.abort(f"`{attribute}` of a content cannot be traced")
            return super().getattr("", attribute)
        return super().getattr(obj, attribute)


def _literal_only(function: Callable[..., Any], subjects: int = 0) -> Callable[..., Any]:
    """Refuses contents in the arguments, but for the first `subjects`."""
    free = subjects + hasattr(function, "jinja_pass_arg")

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        _require_literal(args[free:])
        _require_literal(kwargs)
        return function(*args, **kwargs)

    return wrapper


def _of_type(test: Callable[..., bool]) -> Callable[..., bool]:
    @wraps(test)
    def wrapper(*args: Any) -> bool:
        return test(*("" if isinstance(arg, Symbol) else arg for arg in args))

    return wrapper


def _is_in(value: Any, container: Any) -> bool:
    if isinstance(value, Symbol) and isinstance(container, str) and not isinstance(container, Symbol):
        return value.within(container)
    return value in container


def _require_literal(value: Any) -> None:
    """Aborts the trace unless there surely is no content in a value."""
    left = [value]
    seen = 0
    while left:
        value = left.pop()
        if value is None or type(value) in (str, int, float, bool) or isinstance(value, Undefined):
            continue
        if type(value) in (list, tuple):
            left.extend(value)
        elif type(value) is dict:
            left.extend(value)
            left.extend(value.values())
        else:
            raise TraceAbortedError("a content may reach a function that is not traced")
        seen += 1 + len(value)
        if seen > _MAX_LOOKED:
            raise TraceAbortedError("a list is too long to look for contents in it")
