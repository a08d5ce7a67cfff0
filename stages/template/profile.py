"""Learns what a template does from fixed sample conversations and its source, before any row is rendered.

For ChatML, which writes `<|im_start|>ROLE\\nCONTENT<|im_end|>\\n` for each message, the profile has

    generation_prompt    "<|im_start|>assistant\\n"
    has_fixed_prompt     True: no message changes it
    stop_token           "<|im_end|>", with which answers end
    stop_tokens          ("<|im_end|>",)
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jinja2 import nodes

from .chat_template import REASONING_KEYS
from .gaps import TemplateGaps
from .sample_conversations import ANSWER, TOOL_RESULT, USER, SampleGaps, sample_calls
from .special_tokens import SpecialTokens, token_pattern
from .tracked_str import REASONING_FIELD
from .tracked_template import TrackedTemplate

_SECOND_QUESTION = {"role": "user", "content": "c"}
_SAMPLE_THOUGHT = "c"
_TAG = re.compile(r"\s*(<[^<>\s]*>|\[[^\[\]\s]*\])")


@dataclass(frozen=True, slots=True)
class TemplateProfile:
    """Facts about a template."""

    has_generation_blocks: bool
    """Whether the template has `{% generation %}` blocks; if so, they decide what is trained."""
    generation_prompt: str
    """What opens an assistant's turn; "" if the template writes nothing there."""
    has_fixed_prompt: bool
    """Whether the generation prompt depends on no message."""
    searched_texts: frozenset[str]
    """If it may depend on messages: the texts that the template looks for in messages."""
    thought_closing_tag: str
    """The first tag that the template writes after the thought of a field; "" if there is none."""
    special_tokens: re.Pattern[str]
    """Finds special tokens."""
    gaps: TemplateGaps
    """What it writes around messages."""
    header_stop_tokens: re.Pattern[str]
    """If the template writes no token at the end of a turn: finds the special tokens with which the next message may
    begin, such as `<|user|>`. A model that generates one of them has ended its turn."""
    stop_token: str | None
    """The special token that ends an answer; None if there is none."""
    stop_tokens: tuple[str, ...]
    """The special tokens that end the assistant's turns: at the end of answers and calls, or in the header after
    them."""


def learn_profile(
    template: TrackedTemplate,
    special_tokens: Sequence[str],
    added_tokens: Sequence[str],
    generation_stops: Sequence[str] = (),
) -> TemplateProfile:
    """What the template does with a question and an answer, with a further question, and with a tool call. What it
    refuses, only rows can show.

    Args:
        special_tokens: the tokenizer's special tokens.
        added_tokens: its other added tokens, in case the template ends turns with one of them.
        generation_stops: the tokens at which a generation with this model stops, as far as that is known.
    """
    tree = template.tree
    gaps = _learn_gaps(template, special_tokens, added_tokens, generation_stops)
    answer_stops = _last_stops(gaps, gaps.samples.after_answers)
    call_stops = _last_stops(gaps, gaps.samples.after_calls)
    # Only a template that ends no turn itself leaves this to the header of the next message.
    header_stops: set[str] = set()
    if gaps.samples.after_answers and not answer_stops and not call_stops:
        header_stops.update(_header_stops(gaps))
    is_fixed = has_fixed_prompt(tree)
    return TemplateProfile(
        has_generation_blocks=template.template.marks_generation,
        # A template that opens an answer after every text may add nothing where it is asked to: then what it opens.
        generation_prompt=_generation_prompt(gaps.samples) or gaps.opened_header,
        has_fixed_prompt=is_fixed,
        searched_texts=frozenset() if is_fixed else frozenset(_searched_texts(tree)),
        thought_closing_tag=_thought_closing_tag(gaps.samples),
        special_tokens=gaps.special_tokens,
        gaps=gaps,
        header_stop_tokens=token_pattern(header_stops),
        stop_token=next(iter(answer_stops), None),
        stop_tokens=tuple(sorted({*answer_stops, *call_stops, *header_stops})),
    )


def _learn_gaps(
    template: TrackedTemplate, special_tokens: Sequence[str], added_tokens: Sequence[str], stops: Sequence[str]
) -> TemplateGaps:
    """The gaps of the template's sample conversations. The tokenizer's other added tokens count as special if an answer
    is followed by one of them, and by no special token.

    Args:
        special_tokens, added_tokens: as in `learn_profile`.
        stops: its `generation_stops`.
    """
    variables = template.template.variables
    # Variables such as `eos_token`, which the template writes.
    tokens_in_variables = [
        value for name, value in variables.items() if name.endswith("_token") and isinstance(value, str)
    ]
    special_tokens = [*special_tokens, *tokens_in_variables]
    samples = SampleGaps(template)
    bos = str(variables.get("bos_token") or "")
    gaps = TemplateGaps(samples, SpecialTokens(token_pattern(special_tokens), stops), bos)
    all_tokens = token_pattern([*added_tokens, *special_tokens])
    after_answer = next(iter(samples.after_answers), "")
    if all_tokens.search(after_answer) and not gaps.special_tokens.search(after_answer):
        return TemplateGaps(samples, SpecialTokens(all_tokens, stops), bos)
    return gaps


def _generation_prompt(samples: SampleGaps) -> str:
    """What the template adds to a question to open an answer; "" if it refuses a question, or changes the text before,
    too. Under ChatML, "<|im_start|>user\\na<|im_end|>\\n" is continued by "<|im_start|>assistant\\n".
    """
    closed = samples.rendering([USER])
    opened = samples.rendering([USER], add_generation_prompt=True)
    if closed is None or opened is None or not opened.text.startswith(closed.text):
        return ""
    return opened.text.removeprefix(closed.text)


def _last_stops(gaps: TemplateGaps, after_turns: Sequence[str]) -> list[str]:
    """The last special token in the end of each turn.

    Args:
        after_turns: what follows turns that end the text, such as "<|im_end|>\\n".
    """
    tokens: list[str] = []
    for gap in after_turns:
        end = gaps.end_of_text(gap) or ""
        begin, stop = gaps.tokens.closing_span(end)
        tokens += gaps.special_tokens.findall(end, begin, stop)[-1:]  # none, if the end has no special token
    return list(dict.fromkeys(tokens))


def _thought_closing_tag(samples: SampleGaps) -> str:
    """The first tag that the template writes behind the thought of a last answer: "</think>", if it writes
    `<think>c</think>b`. "" if there is none.
    """
    # Under every key, because a template reads only one of them.
    answer = ANSWER | dict.fromkeys(REASONING_KEYS, _SAMPLE_THOUGHT)
    rendering = samples.rendering([USER, answer])
    if rendering is not None:
        for begin, end, origin in rendering.source_spans:
            # GENERATION is negative, and would seem to have every kind.
            is_thought = origin > 0 and origin & REASONING_FIELD
            if is_thought and rendering.text[begin:end] == _SAMPLE_THOUGHT:
                tag = _TAG.match(rendering.text, end)
                return tag[1] if tag is not None else ""
    return ""


def _header_stops(gaps: TemplateGaps) -> Iterator[str]:
    """The special tokens with which the message after a turn begins, for a template that ends no turn itself."""
    turns = [(ANSWER, _SECOND_QUESTION)]
    for call in sample_calls():
        turns.append((call, TOOL_RESULT))
    for turn, next_message in turns:
        # With tools, because some templates refuse calls without any.
        gap = gaps.samples.between([USER, turn, next_message], before=1, after=2, tools=True)
        token = gaps.special_tokens.search(gap or "")
        if token is not None:
            yield token.group()


# What the generation prompt depends on


_SWITCH = "add_generation_prompt"
_NAMES_OF_ROWS = frozenset({"messages", "tools", "documents", "loop", "caller", "varargs", "kwargs", "self"})
"""Names whose values differ between rows, besides those that the template itself sets."""


def has_fixed_prompt(tree: nodes.Template) -> bool:
    """Whether the generation prompt is the same after every conversation: the switch is used only in conditions at the
    template's top level, whose text depends on nothing but the configuration's variables.
    """
    # `{% if add_generation_prompt %}<|im_start|>assistant{% endif %}` at the end of a template, for example.
    branches = [node for node in tree.body if isinstance(node, nodes.If) and _count_of_switch(node.test)]
    if sum(map(_count_of_switch, branches)) != _count_of_switch(tree):
        return False  # it is used elsewhere, too: in a loop or an assignment
    changing_names = _NAMES_OF_ROWS | _assigned_names(tree)
    names_in_branches = {name.name for branch in branches for name in _names(branch)}
    return changing_names.isdisjoint(names_in_branches)


def _searched_texts(tree: nodes.Template) -> Iterator[str]:
    """The literals that a template looks for in contents, such as `/no_think` in `'/no_think' in message.content`. Two
    contents look the same to it if each literal is in both of them, or in neither.
    """
    values: list[nodes.Node] = []
    for comparison in tree.find_all(nodes.Compare):
        if any(operand.op in ("in", "notin") for operand in comparison.ops):
            values.append(comparison.expr)
    # Literals are also given to methods and filters: `content.split('</think>')`, `content | replace('a', 'b')`.
    for call in tree.find_all(nodes.Call):
        values += call.args
    for applied_filter in tree.find_all(nodes.Filter):
        values += applied_filter.args
    yield from (value.value for value in values if isinstance(value, nodes.Const) and isinstance(value.value, str))


def _names(node: nodes.Node) -> Iterator[nodes.Name]:
    """The names in a part of a template."""
    if isinstance(node, nodes.Name):
        yield node  # which `find_all` leaves out
    yield from node.find_all(nodes.Name)


def _count_of_switch(node: nodes.Node) -> int:
    """How often a part of a template uses the switch."""
    return sum(name.name == _SWITCH for name in _names(node))


def _assigned_names(tree: nodes.Template) -> set[str]:
    """The names to which a template gives values."""
    # jinja2 marks each name as loaded, stored or a parameter.
    stored = {name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"}
    return stored | {macro.name for macro in tree.find_all(nodes.Macro)}
