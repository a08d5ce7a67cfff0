"""Random chat templates that are written three times: with `{% generation %}` around what the assistant says, without,
and with two marks in its place, which show in jinja2's own text where each turn begins and ends.

A template is drawn from what public ones do: several closing tokens, other ends for earlier turns or for calls, remarks
between the words and the end, headers that are always opened, thoughts that are dropped or kept, calls by name or by
argument, filters, summaries, tools, blank contents, numbers in headers.
"""

import random
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]

BEGIN, DONE = "\ue000", "\ue001"
"""Marks around turns."""
SPECIAL = (
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|open|>", "<|sep|>", "<|close|>", "<|call|>"),
    *("[INST]", "[/INST]", "<|user|>", "<|assistant|>", "<|system|>", "<|tool|>", "[TOOLS]", "[/TOOLS]"),
)
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>"}
_ROLES = ("system", "user", "assistant", "tool")
_HEADERS = {
    "chatml": {role: f"<|im_start|>{role}\n" for role in _ROLES},
    "tokens": {role: f"<|{role}|>" for role in _ROLES},
    "instruct": {"system": "[INST] <<", "user": "[INST] ", "assistant": " ", "tool": "[INST] R: "},
    "plain": {role: f"{role.upper()}: " for role in _ROLES},
    "parts": {role: f"<|open|>{role}<|sep|>" for role in _ROLES},
    "as_user": {
        **{role: f"<|im_start|>{role}\n" for role in _ROLES},
        "tool": "<|im_start|>user\n<tool_response>\n",
    },
    "double": {role: f"<|open|>{role}<|sep|>\n\n" for role in _ROLES},
}
_ENDS = (
    *("<|im_end|>", "<|im_end|>", "<|im_end|>", "</s>", "", " END<|im_end|>", "</answer>"),
    *("<|close|><|im_end|>", "<|close|>msg<|sep|><|im_end|>", "<|im_end|>\n<|endoftext|>", "\n<|im_end|>"),
)


def text(value: str) -> str:
    """An expression that writes a text."""
    return "{{- " + repr(value) + " -}}"


def when(condition: str, body: str, other: str = "") -> str:
    """A condition, without white space around it."""
    return "{%- if " + condition + " -%}" + body + (("{%- else -%}" + other) if other else "") + "{%- endif -%}"


def each(loop: str, body: str) -> str:
    """A loop, without white space around it."""
    return "{%- for " + loop + " -%}" + body + "{%- endfor -%}"


@dataclass(frozen=True, slots=True)
class Made:
    """One template."""

    source: str
    """With `BEGIN` and `DONE` where generation blocks begin and end."""
    choices: Row
    """What was drawn."""

    @property
    def tagged(self) -> str:
        """With generation blocks."""
        return self.source.replace(BEGIN, "{% generation %}").replace(DONE, "{% endgeneration %}")

    @property
    def bare(self) -> str:
        """Without."""
        return self.source.replace(BEGIN, "").replace(DONE, "")

    @property
    def shown(self) -> str:
        """With marks in the text."""
        return self.source.replace(BEGIN, text(BEGIN)).replace(DONE, text(DONE))

    @property
    def generation_stops(self) -> tuple[str, ...]:
        """The tokens at which a generation stops."""
        return tuple(self.choices["stops"])


def draw_template(draw: random.Random) -> Made:
    """One template. Most choices are the usual ones, so that each unusual one is met beside them."""
    pick = draw.choice
    style = pick((*["chatml"] * 4, *_HEADERS))
    choices: Row = {
        "style": style,
        "bos": pick(("", "", "<s>", "<|endoftext|>")),
        "default_system": draw.random() < 0.2,
        "user_end": pick(("same", "same", "none", "own")),
        "end": pick(_ENDS),
        "last": pick((*[""] * 12, *["other", "open", "extra"] * 2, "none")),
        # For "none", no last message is closed.
        "call_end": pick(("", "", "", "<|call|>", "<|close|><|call|>")),
        "separator": pick(("", "\n", "\n", "\n\n")),
        "between": draw.random() < 0.15,
        "tail": pick((*[""] * 12, "opened", "opened", "half", "ended")),
        "alternates": draw.random() < 0.15,
        "remark": pick(("", "", "", "long", "note", "all")),
        "numbers": draw.random() < 0.05,
        "thoughts": pick(("", "", "kept", "dropped", "opened", "empty", "in_content")),
        "calls": pick(("json", "arguments", "arguments", "safe", "items", "names", "parts")),
        "cut": pick(("", "", "", "", "results", "arguments")),
        "results": pick(("", "", "", "name", "lookup")),
        "tools": pick(("top", "top", "late", "none")),
        "summary": "" if draw.random() < 0.95 else pick(("top", "bottom")),
        "filter": pick(("", "", "", "", " | trim", " | safe", " | replace('~', '-')", " ~ ''")),
        "blank": pick(("written", "written", "skipped")),
    }
    unclosed = choices["last"] in ("open", "none") or not any(token in choices["end"] for token in SPECIAL)
    if choices["tail"] == "ended" and unclosed:
        choices["tail"] = ""  # whether it ends the last turn, too, would be a matter of taste
    choices["stops"] = _stops(draw, choices)
    return Made(_source(choices), choices)


def _stops(draw: random.Random, choices: Row) -> list[str]:
    """At what a generation with a model of this template stops; nothing if that is not known."""
    if draw.random() < 0.4:
        return []
    stops = {token for token in ("<|im_end|>", "</s>") if choices["end"].endswith(token)}
    if "endoftext" in choices["end"]:
        stops = {draw.choice(("<|im_end|>", "<|endoftext|>"))}
    if choices["last"] in ("other", "extra") and stops:
        stops.add("<|endoftext|>")
    if choices["call_end"] and stops:
        stops.add("<|call|>")
    if not choices["end"] and choices["style"] == "tokens":
        stops = {"<|user|>", "<|tool|>"}
    return sorted(stops)


def _ended(end: str, stops: list[str]) -> tuple[str, str]:
    """The end of a turn: up to where the turn closes, and after. It closes at the first token at which a generation
    would stop, else at the last special token.
    """
    places = [end.index(stop) + len(stop) for stop in stops if stop in end]
    tokens = [end.rindex(token) + len(token) for token in SPECIAL if token in end]
    close = min(places) if places else max(tokens, default=len(end))
    return text(end[:close]), text(end[close:]) if end[close:] else ""


def _source(choices: Row) -> str:
    headers, separator, stops = _HEADERS[choices["style"]], choices["separator"], choices["stops"]
    user_end = {"same": choices["end"], "none": "", "own": "<|sep|>"}[choices["user_end"]]
    if choices["style"] == "instruct":
        user_end = " [/INST]"
    separated = text(separator) if separator else ""
    ended = (
        when("not loop.last or add_generation_prompt", text(user_end))
        if choices["last"] == "none" and user_end
        else text(user_end)
    )
    out = text(choices["bos"]) if choices["bos"] else ""
    if choices["summary"] == "top":
        out += (
            text(headers["system"] + "All: ")
            + each("m in messages", "{{- m.content ~ ';' -}}")
            + text(user_end)
            + separated
        )
    if choices["default_system"]:
        out += when("messages[0].role != 'system'", text(headers["system"] + "Be nice." + user_end) + separated)
    tools = each("t in tools", "{{- t | tojson -}}")
    if choices["tools"] == "top":
        out += when("tools", text(headers["system"] + "Tools: ") + tools + text(user_end) + separated)
    loop = ""
    if choices["alternates"]:
        same = "not loop.first and m.role == messages[loop.index0 - 1].role"
        loop += when(same, "{{- raise_exception('roles must alternate') -}}")
    if choices["between"]:
        loop += when("not loop.first", separated)
    if choices["tools"] == "late":
        late = "tools and m.role == 'user' and loop.index0 == (messages | length - 2)"
        loop += when(late, text("[TOOLS]") + tools + text("[/TOOLS]"))
    for number, role in enumerate(_ROLES):
        body = text(headers[role]) if role != "assistant" else ""
        if role == "assistant":
            body += _answer(choices, headers, stops)
        elif role == "tool":
            body += _result(choices) + text("\n</tool_response>" if choices["style"] == "as_user" else "") + ended
        else:
            body += "{{- m.content" + choices["filter"] + " -}}" + ended
        if choices["numbers"]:
            body = "{{- '<' ~ loop.index ~ '>' -}}" + body
        loop += "{%- " + ("elif" if number else "if") + f" m.role == '{role}' -%}}" + body
    loop += "{%- endif -%}" + ("" if choices["between"] else separated)
    out += each("m in messages", loop)
    if choices["summary"] == "bottom":
        out += (
            text(headers["system"] + "All: ")
            + each("m in messages", "{{- m.content ~ ';' -}}")
            + text(user_end)
            + separated
        )
    return out + _tail(choices, headers, separated)


def _tail(choices: Row, headers: Row, separated: str) -> str:
    """What stands at the text's end."""
    header = text(headers["assistant"])
    opened = header + text({"opened": "<think>\n", "empty": "<think>\n\n</think>\n\n"}.get(choices["thoughts"], ""))
    if choices["numbers"]:
        opened = "{{- '<' ~ (messages | length + 1) ~ '>' -}}" + opened
    if choices["between"]:
        opened = separated + opened
    if choices["tail"] == "opened":
        return opened
    if choices["tail"] == "half" and choices["style"] in ("chatml", "parts"):
        whole = headers["assistant"]
        first = whole[: whole.index("|>") + 2]
        rest = opened.replace(text(whole), text(whole[len(first) :]))
        return text(first) + when("add_generation_prompt", rest)
    if choices["tail"] == "ended":
        return when("add_generation_prompt", opened, text("<|endoftext|>"))
    return when("add_generation_prompt", opened)


def _answer(choices: Row, headers: Row, stops: list[str]) -> str:
    """An answer with its header. Each branch has a whole block, as jinja2 asks."""
    header, content = text(headers["assistant"]), "{{- m.content" + choices["filter"] + " -}}"
    thoughts = choices["thoughts"]
    if thoughts == "in_content":
        content = when("loop.last", content, "{{- m.content.split('</think>')[-1].lstrip('\\n') -}}")
    if choices["blank"] == "skipped":
        content = when("m.content", content)
    has, opening, closing = "m.reasoning_content", text("<think>\n"), text("\n</think>\n\n")
    thought = "{{- m.reasoning_content -}}" + closing
    begins = {  # a condition, what stands before the block, and with what it begins
        "kept": [(has, header, opening + thought)],
        "dropped": [(f"{has} and loop.last", header, opening + thought)],
        "opened": [(has, header + opening, thought)],
        "empty": [(has, header + opening, thought), ("loop.last", header + opening + closing, "")],
    }.get(thoughts, [])
    remark = {
        "": "",
        "all": text(" (so)"),
        "long": when("m.content and m.content | length > 12", text(" (long)")),
        "note": when("m.note", "{{- ' (' ~ m.note ~ ')' -}}"),
    }[choices["remark"]]
    calls = when("m.tool_calls", each("c in m.tool_calls", _call(choices)))
    last = {"other": "<|endoftext|>", "open": "", "none": "", "extra": choices["end"] + "<|endoftext|>"}
    ends = [("m.tool_calls", choices["call_end"])] if choices["call_end"] else []
    ends += [("loop.last", last[choices["last"]])] if choices["last"] else []

    def block(before: str, inside: str) -> str:
        out = ""
        for condition, end in reversed([*ends, ("", choices["end"])]):
            within, after = _ended(end, stops)
            body = before + BEGIN + inside + content + calls + remark + within + DONE + after
            out = when(condition, body, out) if condition else body
        return out

    out = block(header, "")
    for condition, before, inside in reversed(begins):
        out = when(condition, block(before, inside), out)
    return out


def _call(choices: Row) -> str:
    """A call of the loop variable `c`."""
    value = "v[:3]" if choices["cut"] == "arguments" else "v"
    name, loop = "{{- c.function.name -}}", "k, v in c.function.arguments.items()"
    opened, between, closed = text("<|open|>"), text("<|sep|>"), text("<|close|>")
    item = "{{- k ~ '=' ~ " + value + " ~ ', ' -}}"
    part = opened + "{{- k -}}" + between + "{{- " + value + " -}}" + closed
    return {
        "json": text("\n<call>") + "{{- c.function | tojson -}}" + text("</call>"),
        "arguments": text("[CALL]") + name + "{{- c.function.arguments | tojson -}}",
        "safe": text("[CALL]") + name + "{{- c.function.arguments | tojson | safe -}}",
        "items": text("\n") + name + "(" + each(loop, item) + text(")"),
        "names": text(" (calls ") + name + text(")"),
        "parts": text("<|open|>call ") + name + between + each(loop, part) + closed + text("call<|sep|>"),
    }[choices["calls"]]


def _result(choices: Row) -> str:
    """The result of a call."""
    content = "{{- m.content[:6] -}}" if choices["cut"] == "results" else "{{- m.content" + choices["filter"] + " -}}"
    if choices["results"] == "name":
        return when("m.name", "{{- m.name ~ ': ' -}}") + content
    if choices["results"] == "lookup":
        found = each("c in p.tool_calls", when("c.id == m.tool_call_id", "{{- c.function.name ~ ' -> ' -}}"))
        return each("p in messages", when("p.tool_calls", found)) + content
    return content


# Conversations

_WORDS = (
    *("yes", "no", "four", "two words", "a longer answer of words", "line\nline", "assistant", "user", "x", "so"),
    *("Be nice.", "1", "call", "END"),
)
_NASTY = (
    *("<|im_end|>", "<|im_end|>\n<|im_start|>user\n", "</s>", "[INST] ", "USER: ", " pad ", "\n", "</answer>"),
    *("<think>\nhm\n</think>\n\nso", "<|endoftext|>", "{{ x }}", "f", "find", "<|close|>", " (long)"),
)
TOOLS: list[Row] = [
    {"type": "function", "function": {"name": "find", "description": "Finds.", "parameters": {"type": "object"}}}
]


def draw_conversation(draw: random.Random, choices: Row) -> tuple[list[Row], list[Row] | None]:
    """Messages, the last the assistant's or (rarely) the user's, and tools."""

    def said(blank: float = 0.04) -> str:
        if draw.random() < blank:
            return draw.choice(("", "", " ", "\n"))
        words = draw.choice(_WORDS)
        return words + draw.choice(_NASTY) if draw.random() < 0.08 else words

    def answer(*, last: bool = False) -> Row:
        message: Row = {"role": "assistant", "content": said(0.0 if last else 0.05)}
        if choices["thoughts"] not in ("", "in_content") and draw.random() < 0.5:
            message["reasoning_content"] = said()
        if choices["thoughts"] == "in_content" and draw.random() < 0.5:
            message["content"] = "<think>\n" + draw.choice(_WORDS) + "\n</think>\n\n" + message["content"]
        if choices["remark"] == "note" and draw.random() < 0.5:
            message["note"] = draw.choice(("cut", "so"))
        if draw.random() < 0.03:
            message["train"] = False
        return message

    messages: list[Row] = []
    if draw.random() < 0.35:
        messages.append({"role": "system", "content": said()})
    called = False
    for _ in range(draw.choice((1, 1, 2, 2, 3))):
        messages.append({"role": "user", "content": said()})
        if draw.random() < 0.25 and not choices["alternates"]:
            called = True
            for _ in range(draw.choice((1, 1, 2))):
                messages += _calling(draw, answer(), said)
        if draw.random() < 0.06 and not choices["alternates"]:
            messages.append({"role": draw.choice(("user", "assistant")), "content": said()})
        messages.append(answer())
    if draw.random() < 0.1:
        messages.append({"role": "user", "content": said()})
    elif not messages[-1]["content"].strip():
        messages[-1]["content"] = "done"
    return messages, TOOLS if (called and choices["tools"] != "none") or draw.random() < 0.05 else None


def _calling(draw: random.Random, message: Row, said: Any) -> list[Row]:
    """An answer with calls, and their results."""
    message["content"] = draw.choice(("", "", said(0)))
    calls: list[Row] = []
    results: list[Row] = []
    for _ in range(draw.choice((1, 1, 1, 2))):
        arguments: Row = {key: said(0.05) for key in ("what", "where")[: draw.choice((0, 1, 1, 2))]}
        if draw.random() < 0.2:
            arguments["count"] = draw.choice((3, True, None, 1.5))
        call_id = f"call{draw.randrange(10**5):05}"
        calls.append({"id": call_id, "type": "function", "function": {"name": "find", "arguments": arguments}})
        results.append({"role": "tool", "content": said(0), "tool_call_id": call_id, "name": "find"})
    message["tool_calls"] = calls
    return [message, *results]


# What is right


def turns_shown(shown: str) -> tuple[str, list[tuple[int, int]]]:
    """A text without its marks, and where each turn begins and ends in it."""
    plain: list[str] = []
    turns: list[tuple[int, int]] = []
    begin = 0
    for character in shown:
        if character == BEGIN:
            begin = len(plain)
        elif character == DONE:
            turns.append((begin, len(plain)))
        else:
            plain.append(character)
    return "".join(plain), turns
