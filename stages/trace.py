"""The speed path of rendering: a template specialised to one pattern of roles.

A trace is made by rendering a row once with symbols for contents. It then is a short program: guards that a
row must answer as the guiding row did, operations on contents, and the parts that are joined. A row whose
guards hold takes the path through the template that the guiding row took, so that its text is the join.

Soundness rests on the environment below: jinja2 lets it see every call, attribute, filter, test, `%`, `in`
and join of a template, and it aborts where a content would reach code that cannot report what it looks at.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.runtime import BlockReference, Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from ..schemas.rows import Messages
from .symbol import (
    DERIVATIONS,
    INSPECTIONS,
    MARK,
    UNDERSTOOD,
    Atom,
    Atoms,
    Record,
    Step,
    Symbol,
    SymbolParts,
    TraceAbortedError,
    concat,
)
from .template import ChatTemplate, DictMaker, GuardedNamespace, make_environment

Instruction: TypeAlias = tuple[Callable[[Any], Any], int | slice, bool | None]
"""(function, number of its argument, outcome of a guard or None for a value that is kept).

A join takes all values, as a slice."""

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


class Split(NamedTuple):
    """Where the completion begins: the text's length, or a constant, plus signed lengths of values."""

    from_end: bool
    constant: int
    values: tuple[int, ...]
    """Their lengths are subtracted when counting from the end, and added otherwise."""


class Trace:
    """A compiled trace: call `run` with the contents of a row."""

    def __init__(
        self,
        program: list[Instruction],
        literals: list[str],
        text: Callable[[Any], Any],
        head: Callable[[Any], Any] | None,
        split: Split | None,
    ) -> None:
        self.checked = 0
        """Rows that it answered as jinja2 did. The renderer counts."""
        self.unchecked = 0
        """Rows that went out as it answered them."""
        self._program = program
        self._literals = literals
        self._text = text
        self._head = head
        self._split = split

    def run(self, contents: list[str]) -> tuple[str, int] | None:
        """(text, position where the completion begins), or None where a guard does not hold."""
        values = contents + self._literals
        for function, argument, outcome in self._program:
            result = function(values[argument])
            if outcome is None:
                values.append(result)
            elif result is not outcome:
                return None
        text = "".join(self._text(values))
        if self._split is None:
            assert self._head is not None
            return text, common_prefix("".join(self._head(values)), text)
        from_end, position, indices = self._split
        for index in indices:
            position += len(values[index])
        return text, len(text) - position if from_end else position


class Tracer:
    """Makes traces of one template.

    Raises:
        TraceAbortedError: the template uses something that can never be traced.
    """

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._environment = make_environment(_TracingEnvironment, template.name, template.date)
        tree = self._environment.parse(template.source)
        # Escaping is done by C code on the bare characters.
        if tree.find(nodes.EvalContextModifier):
            raise TraceAbortedError("the template switches escaping")
        tree = _InAsTest().visit(tree)
        code = self._environment.compile(tree)
        self._compiled = jinja2.Template.from_code(self._environment, code, self._environment.make_globals(None))
        # What `~` compiles to.
        self._compiled.root_render_func.__globals__["str_join"] = _join_all

    def trace(self, roles: tuple[str, ...], contents: list[str], prompt: int) -> Trace:
        """Traces a row.

        Args:
            roles: one per message.
            contents: one per message, exact `str`.
            prompt: how many of the messages are the prompt.

        Raises:
            TraceAbortedError: the template does something that cannot be traced, or refuses the row.
        """
        record = Record(contents)
        chat: Messages = [
            _Message(record, {"role": role, "content": record.symbol(index)}) for index, role in enumerate(roles)
        ]
        text = self._render(record, chat, add_generation_prompt=False)
        head: Atoms | None = None
        if 0 < prompt < len(roles):
            head = self._render(record, chat[:prompt], add_generation_prompt=True)
        return _compile(record, len(contents), text, head, Split(prompt > 0, 0, ()))

    def _render(self, record: Record, chat: Messages, *, add_generation_prompt: bool) -> Atoms:
        inputs = self._template.inputs(chat, None, add_generation_prompt=add_generation_prompt)
        try:
            text = concat(self._compiled.root_render_func(self._compiled.new_context(inputs)))
        except Exception as error:  # whatever it is, jinja2 will say it again, to the row
            raise TraceAbortedError(record.aborted or f"{type(error).__name__}: {error}") from error
        atoms: Atoms = text.atoms if isinstance(text, Symbol) else (text,)
        literals = chain(atoms, *(step.args for step in record.steps))
        if record.aborted or any(MARK in literal for literal in literals if isinstance(literal, str)):
            raise TraceAbortedError(record.aborted or "a content passed through code that is not traced")
        return atoms


def common_prefix(head: str, text: str) -> int:
    """How many characters two texts have in common from the start."""
    if text.startswith(head):
        return len(head)
    low, high = 0, min(len(head), len(text))  # the first `low` are equal, the first `high + 1` are not
    while low < high:
        middle = (low + high + 1) // 2
        if head[low:middle] == text[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _split(head: Atoms, text: Atoms) -> Split | None:
    """Where two symbolic texts part, if that is the same place for all contents; otherwise None."""
    left, right = list(head), list(text)
    constant, values = 0, []
    while left and right:
        a, b = left.pop(0), right.pop(0)
        if isinstance(a, int) and a == b:
            values.append(a)
        elif isinstance(a, str) and isinstance(b, str):
            same = common_prefix(a, b)
            constant += same
            if same < len(a) and same < len(b):
                right.insert(0, b[same:])
                break
            if same < len(a):
                left.insert(0, a[same:])
            if same < len(b):
                right.insert(0, b[same:])
        else:
            return None  # a content meets something else: the row decides
    after = [atom for atom in right if isinstance(atom, int)]
    if len(after) < len(values):
        rest = sum(len(atom) for atom in right if isinstance(atom, str))
        return Split(True, rest, tuple(after))
    return Split(False, constant, tuple(values))


def _compile(record: Record, contents: int, text: Atoms, head: Atoms | None, fixed: Split) -> Trace:
    """Numbers the values anew: contents, then literals, then what the needed operations make."""
    split = fixed if head is None else _split(head, text)
    outputs = [text] if split is not None or head is None else [text, head]
    needed = {atom for atom in chain(*outputs) if isinstance(atom, int)}
    steps: list[Step] = []
    for step in reversed(record.steps):  # only what a guard or the text depends on
        if step.is_guard or step.outcome in needed:
            steps.insert(0, step)
            needed.update(
                (atom for atom in step.args if isinstance(atom, int)) if step.name == "cat" else (step.source,)
            )

    literals: dict[str, int] = {"": contents}
    for atom in chain(*outputs, *(step.args for step in steps if step.name == "cat")):
        if isinstance(atom, str):
            literals.setdefault(atom, contents + len(literals))
    number: dict[Atom, int] = {index: index for index in range(contents)}
    number.update(literals)

    def taking(atoms: Atoms) -> Callable[[Any], Any]:
        # Two more empty strings make `itemgetter` give a tuple whatever the number of atoms.
        return operator.itemgetter(*(number[atom] for atom in (*atoms, "", "")))

    program: list[Instruction] = []
    size = contents + len(literals)
    for step in steps:
        if step.is_guard:
            guard = INSPECTIONS[step.name](*step.args)
            program.append((guard, number[step.source], bool(step.outcome)))
            continue
        if step.name == "cat":
            program.append((_join(taking(step.args)), slice(None), None))
        else:
            program.append((DERIVATIONS[step.name](*step.args), number[step.source], None))
        number[step.outcome] = size
        size += 1
    if split is not None:
        split = split._replace(values=tuple(number[value] for value in split.values))
    return Trace(program, list(literals), taking(text), taking(head) if head and split is None else None, split)


def _join(taking: Callable[[Any], Any]) -> Callable[[list[str]], str]:
    return lambda values: "".join(taking(values))


def _join_all(pieces: Iterable[Any]) -> str:
    """What `~` does, for symbols too."""
    return concat(map(str, pieces))


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


class _TracingEnvironment(ImmutableSandboxedEnvironment):
    """Watches what a template does; what it renders is what the ordinary environment renders."""

    intercepted_binops = frozenset({"%"})
    concat = staticmethod(concat)

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
    if value is None or type(value) in (str, int, float, bool) or isinstance(value, Undefined):
        return
    if type(value) in (list, tuple):
        for item in value:
            _require_literal(item)
    elif type(value) is dict:
        for key, item in value.items():
            _require_literal(key)
            _require_literal(item)
    else:
        raise TraceAbortedError("a content may reach a function that is not traced")
