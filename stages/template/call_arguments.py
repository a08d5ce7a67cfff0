"""The arguments of tool calls in the form in which servers hand them to a chat template.

OpenAI's rows have them as JSON text. vLLM and SGLang parse that text before their template sees it, so a model that
they serve reads calls with objects, and a template that writes `arguments | tojson` would write the text as a quoted
string.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Literal, TypeAlias

from ...schemas.errors import PacktrainError
from ...schemas.jsontext import too_deep
from ...schemas.rows import Message, Messages

CallArguments: TypeAlias = Literal["object", "text", "as_given"]
"""`object`: a text that is the JSON of an object becomes the object. `text`: an object becomes its JSON. `as_given`:
arguments stay as they are."""

# A sample call, by which `learn_call_arguments` finds the form that a template takes.
_KEY = "city"
_VALUE = "Paris"
_ARGUMENTS = {_KEY: _VALUE}
_CALL_ID = "abcdefghi"
"""Nine letters and digits, as one template asks for."""
_TOOL = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Looks it up.",
        "parameters": {"type": "object", "properties": {_KEY: {"type": "string", "description": "A city."}}},
    },
}


def with_call_arguments(messages: Messages, form: CallArguments) -> Messages:
    """(M,) messages whose calls have their arguments in the given form. The input is not changed."""
    if form == "as_given" or not any(message.get("tool_calls") for message in messages):
        return messages
    convert = _to_object if form == "object" else _to_text
    return [_with_calls(message, convert) if message.get("tool_calls") else message for message in messages]


def call_arguments_not_json(messages: Messages) -> int:
    """How many calls have a text as arguments that is not the JSON of an object; "" stands for none."""
    count = 0
    for message in messages:
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            texts = [arguments for arguments in _arguments(calls) if isinstance(arguments, str)]
            count += sum(isinstance(_to_object(text), str) for text in texts)
    return count


def learn_call_arguments(render: Callable[[Messages, list[dict[str, Any]] | None], str]) -> CallArguments:
    """The form that a template takes. That is `text` if the template refuses objects, leaves them out or writes them as
    Python does, and takes texts; else `object`.

    Args:
        render: renders messages and tools, with calls as they are given.
    """
    text_with_object = _text_with_arguments(render, _ARGUMENTS)
    # `{'city': 'Paris'}`: the template writes the object as Python does, which no server's model ever reads.
    is_python_repr = str(_ARGUMENTS) in text_with_object
    if text_with_object and not is_python_repr:
        return "object"
    takes_text = bool(_text_with_arguments(render, json.dumps(_ARGUMENTS)))
    return "text" if takes_text else "object"


def _text_with_arguments(render: Callable[[Messages, list[dict[str, Any]] | None], str], arguments: Any) -> str:
    """A rendering of the sample conversation in which the call's arguments are written; "" if the template refuses them
    or leaves them out.
    """
    for tools in ([_TOOL], None):
        # Some templates refuse calls without tools, and others have no place for tools.
        with suppress(PacktrainError):
            text = render(_conversation(arguments), tools)
            # The tools have the key, too, but only the call has the value.
            if _KEY in text and _VALUE in text:
                return text
    return ""


def _conversation(arguments: Any) -> Messages:
    """A question, a call with these arguments, its result and an answer. Only the call has the arguments' words."""
    call = {"id": _CALL_ID, "type": "function", "function": {"name": "lookup", "arguments": arguments}}
    return [
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "lookup", "tool_call_id": _CALL_ID, "content": "There."},
        {"role": "assistant", "content": "There."},
    ]


def _arguments(calls: list[Any]) -> Iterator[Any]:
    """The arguments of each call, whether they stand in its `function` or beside its name."""
    for call in calls:
        function = call.get("function", call) if isinstance(call, dict) else None
        if isinstance(function, dict):
            yield function.get("arguments")


def _with_calls(message: Message, convert: Callable[[Any], Any]) -> Message:
    """A message whose calls have converted arguments."""
    calls = message["tool_calls"]
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_with_arguments(call, convert) for call in calls]}


def _with_arguments(call: Any, convert: Callable[[Any], Any]) -> Any:
    """A call whose arguments are converted. What is no call stays: a template refuses it, or it is lost."""
    if not isinstance(call, dict):
        return call
    # Some rows have a call's name and arguments without the `function` around them.
    function = call.get("function")
    if isinstance(function, dict):
        return {**call, "function": _with_arguments(function, convert)}
    if "arguments" not in call:
        return call
    return {**call, "arguments": convert(call["arguments"])}


def _to_object(arguments: Any) -> Any:
    """The object of a JSON text; anything else as it is. Empty arguments are an empty object, as in vLLM."""
    if arguments is None or arguments == "":
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        # `parse_constant` is called for NaN and Infinity, which Python reads and JSON does not have.
        value = json.loads(arguments, parse_constant=_refuse_constant)
        if "\\u" in arguments:
            json.dumps(value, ensure_ascii=False).encode()  # refuses half of a surrogate pair
    except (ValueError, RecursionError):
        return arguments
    # An object that is nested too deeply stays a text, too.
    return value if isinstance(value, dict) and not too_deep(value) else arguments


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _to_text(arguments: Any) -> Any:
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else arguments
