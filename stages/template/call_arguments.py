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
"""`object`: a text that is the JSON of an object becomes the object. `text`: an object becomes its JSON. `as_given`."""
_KEY, _VALUE = "city", "Paris"
_PROBE = {_KEY: _VALUE}
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
    """(M,) messages whose calls have their arguments in a form. The input is not changed."""
    if form == "as_given" or not any(message.get("tool_calls") for message in messages):
        return messages
    convert = _to_object if form == "object" else _to_text
    return [_with_calls(message, convert) if message.get("tool_calls") else message for message in messages]


def call_arguments_not_json(messages: Messages) -> int:
    """How many calls have a text as arguments that is not the JSON of an object; "" stands for none."""
    return sum(
        isinstance(arguments, str) and isinstance(_to_object(arguments), str)
        for message in messages
        if isinstance(calls := message.get("tool_calls"), list)
        for arguments in _arguments(calls)
    )


def learn_call_arguments(render: Callable[[Messages, list[dict[str, Any]] | None], str]) -> CallArguments:
    """The form that a template takes: objects, unless it refuses them, leaves them out or writes them as Python does,
    and takes texts.

    Args:
        render: renders messages and tools, with calls as they are given.
    """

    def shown(arguments: Any) -> str:
        texts = []
        for tools in ([_TOOL], None):
            with suppress(PacktrainError):
                texts.append(render(_conversation(arguments), tools))
        return next((text for text in texts if _KEY in text and _VALUE in text), "")

    # The tools name the key, but only the call has the value.
    as_object = shown(_PROBE)
    if as_object and str(_PROBE) not in as_object:
        return "object"
    return "text" if shown(json.dumps(_PROBE)) else "object"


def _conversation(arguments: Any) -> Messages:
    call = {"id": _CALL_ID, "type": "function", "function": {"name": "lookup", "arguments": arguments}}
    return [
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "lookup", "tool_call_id": _CALL_ID, "content": "There."},
        {"role": "assistant", "content": "There."},
    ]


def _arguments(calls: list[Any]) -> Iterator[Any]:
    for call in calls:
        function = call.get("function", call) if isinstance(call, dict) else None
        if isinstance(function, dict):
            yield function.get("arguments")


def _with_calls(message: Message, convert: Callable[[Any], Any]) -> Message:
    calls = message["tool_calls"]
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_with_arguments(call, convert) for call in calls]}


def _with_arguments(call: Any, convert: Callable[[Any], Any]) -> Any:
    if not isinstance(call, dict):
        return call
    if isinstance(function := call.get("function"), dict):
        return {**call, "function": _with_arguments(function, convert)}
    return {**call, "arguments": convert(call["arguments"])} if "arguments" in call else call


def _to_object(arguments: Any) -> Any:
    """The object of a JSON text; anything else as it is. Empty arguments are an empty object, as in vLLM."""
    if arguments is None or arguments == "":
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        value = json.loads(arguments, parse_constant=_refuse)
        if "\\u" in arguments:
            json.dumps(value, ensure_ascii=False).encode()  # refuses half of a surrogate pair
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) and not too_deep(value) else arguments


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _to_text(arguments: Any) -> Any:
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else arguments
