"""A conversation whose every text knows where it came from, and its rendering, in which they are found again.

Before the template sees a row, each string of it is marked as words of a message: of its content, of a thought, or of a
tool call. Contents, thoughts and calls enter the template as `TrackedStr`: strings that behave normally and remember
where they came from. So one rendering gives the text and the origin of its words.
"""

import re
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import Any, NamedTuple

from jinja2 import pass_eval_context
from jinja2.filters import do_join
from jinja2.nodes import EvalContext, Template
from jinja2.runtime import LoopContext

from ...schemas.rows import Message, Messages
from .chat_template import REASONING_KEYS, ChatTemplate, plain, with_reasoning
from .environment import GuardedNamespace, Sandbox, tojson
from .tracked_str import (
    CALL,
    GENERATION,
    MESSAGE,
    REASONING,
    TAGGED,
    TrackedStr,
    Word,
    code_of,
    join,
    owned,
    owner_of,
    safe,
    words_of,
)

ASSISTANT = "assistant"
"""The role whose messages are trained."""
OPENING, CLOSING = "<think>", "</think>"
"""Tags around thoughts in contents, whatever the template."""
IN_BOTH = "think>"
"""What both tags contain, for a quick look."""
CALL_KEYS = ("name", "arguments", "parameters", "input")
"""Keys that hold the words of a tool call."""
_TAGS = re.compile("</?think>")
_LETTER = re.compile(r"[^\W_]")
_DICT_NAMES = frozenset(dir(dict))
_LOOP_NAMES = frozenset(name for name in dir(LoopContext) if not name.startswith("_"))


@dataclass(slots=True)
class Owned:
    """The messages of a row as the template sees them, and what the text must show of them."""

    chat: Messages = field(default_factory=list)
    """With tracked contents."""
    roles: list[str] = field(default_factory=list)
    """One per message."""
    flags: list[float] = field(default_factory=list)
    """How much each message counts in the loss; see `loss_weight`."""
    said: dict[int, Any] = field(default_factory=dict)
    """By code, what is more than white space: texts of contents without their thoughts, of thoughts, and whole tool
    calls."""
    tangled: int = -1
    """The last message whose content has more thoughts than one at its beginning; -1 if there is none."""

    def saying(self, kinds: int) -> set[int]:
        """The messages with words of some kinds."""
        return {code >> MESSAGE for code in self.said if code & kinds}

    def _say(self, code: int, text: str) -> None:
        if not is_blank(text):
            self.said.setdefault(code, text)

    def add(self, message: Message) -> None:
        """Append a message, with tracked content, reasoning and tool calls."""
        index, role = len(self.chat), message["role"]
        seen: Message = {}
        for key, value in message.items():
            if value is None:
                continue
            if key == "content" and type(value) is str:
                seen[key] = self._content(value, index << MESSAGE, role)
            elif key in REASONING_KEYS and type(value) is str:
                thought = code_of(index, 0, REASONING)
                seen[key] = owned(value, thought)
                self._say(thought, value)
            elif key == "tool_calls" and type(value) is list:
                calls = [(code_of(index, number, CALL), call) for number, call in enumerate(value, 1)]
                seen[key] = [_call(call, code) for code, call in calls]
                self.said.update((code, call) for code, call in calls if call)
            else:
                seen[key] = plain(value)
        self.chat.append(with_reasoning(seen))
        self.roles.append(role)
        self.flags.append(loss_weight(message))

    def _content(self, text: str, code: int, role: str) -> TrackedStr:
        """A content; the thought with which one of the assistant begins has a code of its own."""
        if role != ASSISTANT or IN_BOTH not in text:
            self._say(code, text)
            return owned(text, code)
        end = thought_end(text)
        if end < 0:
            self.tangled, end = code >> MESSAGE, 0
        self._say(code | TAGGED, text[:end])
        if bare(text[end:]):
            self._say(code, text[end:])
        words = ((0, end, code | TAGGED), (end, len(text), code))
        return TrackedStr(text, tuple([word for word in words if word[0] < word[1]]))


def own(messages: Messages) -> Owned:
    """Messages as the template sees them."""
    made = Owned()
    for message in messages:
        made.add(message)
    return made


def is_blank(text: str) -> bool:
    """Whether a text is empty, or only white space."""
    return not text or text.isspace()


def bare(text: str) -> str:
    """A text without the tags of thoughts, and without white space around it."""
    return _TAGS.sub("", text).strip()


def thought_end(content: str) -> int:
    """Where the thought at the beginning of a content ends, before its closing tag; 0 if there is none, -1 if there may
    be more than one: the content has words before its opening tag, or several closing tags.

    Everything before the closing tag is one, with an opening tag or without: templates and servers read it so. So is a
    content that begins with an opening tag that nothing closes. A thought without a character other than white space is
    none: the empty block is what a model generates instead of one.
    """
    thought, closing, rest = content.partition(CLOSING)
    before, opening, _ = thought.partition(OPENING)
    if closing and (CLOSING in rest or (opening and not is_blank(before))):
        return -1
    if not closing and not content.lstrip().startswith(OPENING):
        return 0
    return len(thought) if bare(thought) else 0


def with_other_thought(messages: Messages, code: int) -> Messages | None:
    """Messages in which the thought of a code has other letters; None if it has no letters."""
    index = code >> MESSAGE
    message = dict(messages[index])
    if code & REASONING:
        for key in REASONING_KEYS:
            if isinstance(message.get(key), str):
                message[key] = _other_letters(message[key])
    else:
        content = message["content"]
        end = thought_end(content)
        tags = _TAGS.findall(content[:end])
        pieces = map(_other_letters, _TAGS.split(content[:end]))
        message["content"] = "".join(chain(*zip_longest(pieces, tags, fillvalue=""))) + content[end:]
    return [*messages[:index], message, *messages[index + 1 :]] if message != messages[index] else None


def _other_letters(text: str) -> str:
    return _LETTER.sub(lambda match: "x" if match.group() != "x" else "y", text)


def loss_weight(message: Mapping[str, Any]) -> float:
    """How much a message counts in the loss: False (not at all) if it says `train: false` or has a `weight` of 0, its
    `weight` if that is another number than 1, else True.
    """
    weight = message.get("weight")
    if message.get("train") is False or weight == 0:
        return False
    return True if weight is None or weight == 1 else float(weight)


class OwnedDict(dict[Any, Any]):
    """A tool call, its function or its arguments: a dictionary that remembers its message."""

    __slots__ = ("_code",)  # hidden from templates by the sandbox

    def __init__(self, code: int) -> None:
        self._code = code


def _call(value: Any, code: int) -> Any:
    """A tool call, or a part of one, with tracked texts."""
    if type(value) is str:
        return owned(value, code)
    if type(value) is list:
        return [_call(item, code) for item in value]
    if type(value) is dict:
        made = OwnedDict(code)
        for key, item in value.items():
            made[_call(key, code)] = _call(item, code)
        return made
    return plain(value)


def _origin_of(value: Any) -> int | None:
    """The code of a value that came from one place; for several tool calls of a message, their common code."""
    if type(value) is OwnedDict:
        return value._code
    if type(value) is not list or not value or type(value[0]) is not OwnedDict:
        return owner_of(value)
    code = value[0]._code
    if all(type(item) is OwnedDict and item._code == code for item in value):
        return code
    return code_of(code >> MESSAGE, 0, CALL)


class TrackingEnvironment(Sandbox):
    """The sandbox with tracked strings: filters and joins keep where each character came from."""

    concat = staticmethod(join)

    def __init__(self, name: str, date: str | None) -> None:
        super().__init__(name, date)
        filters: dict[str, Any] = self.filters
        filters |= {"tojson": _tojson, "join": _join, "safe": safe}

    def generation(self, text: str) -> str:
        """Mark the text of a block."""
        return TrackedStr(text, (*words_of(text), (0, len(text), GENERATION)))

    def getattr(self, obj: Any, attribute: str) -> Any:
        """See jinja2, which finds keys of dictionaries through exceptions, and asks whether names are safe, slowly."""
        if type(obj) is GuardedNamespace and attribute in obj.__dict__:
            return obj.__dict__[attribute]  # its names all are
        if type(obj) is LoopContext and attribute in _LOOP_NAMES:
            return getattr(obj, attribute)
        if type(obj) in (dict, OwnedDict) and attribute not in _DICT_NAMES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)


def _tojson(value: Any, *args: Any, **kwargs: Any) -> str:
    text, owner = tojson(value, *args, **kwargs), _origin_of(value)
    return text if owner is None else owned(text, owner)


@pass_eval_context
def _join(context: EvalContext, value: Any, d: Any = "", attribute: Any = None) -> Any:
    if attribute is not None or context.autoescape:
        return do_join(context, value, d, attribute)
    return join([str(item) for item in value], str(d))


class Marked(NamedTuple):
    """A rendering with its words."""

    text: str
    words: list[Word]
    """Sorted."""


class Marker:
    """Renders with `TrackedStr` contents.

    Args:
        template: the chat template.
        environment: what it is compiled in.
    """

    def __init__(self, template: ChatTemplate, environment: TrackingEnvironment) -> None:
        self.template = template
        self._environment = environment
        self._compiled = environment.compiled(template.source)

    def for_template(self, template: ChatTemplate) -> "Marker":
        """The same for a template of the same source, with other variables or documents."""
        marker = copy(self)
        marker.template = template
        return marker

    @property
    def tree(self) -> Template:
        """The template's syntax tree."""
        return self._environment.parse(self.template.source)

    def render(
        self, chat: Messages, tools: list[dict[str, Any]] | None, *, add_generation_prompt: bool = False
    ) -> Marked:
        """Render messages that `own` made; return the text and its words.

        Raises:
            RowRejectedError, TemplateError: as `ChatTemplate.render`.
        """
        compiled = self._compiled
        words: tuple[Word, ...] = ()

        def render(inputs: dict[str, Any]) -> str:
            nonlocal words
            made = join(compiled.root_render_func(compiled.new_context(inputs)))
            words = words_of(made)
            return str.__str__(made)

        text = self.template.guarded(render, chat, tools, add_generation_prompt=add_generation_prompt)
        return Marked(text, sorted(words))
