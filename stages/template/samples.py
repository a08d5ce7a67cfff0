"""Small conversations by which `profile` and `gaps` learn what a template does. Each content is one letter, so that it
is short, and no template looks for it.
"""

from collections.abc import Iterator
from typing import Any

from ...schemas.rows import Message
from .tracked_messages import ASSISTANT

_CALL_ID = "abcdefghi"
"""Some templates ask for ids of nine letters."""
USER: Message = {"role": "user", "content": "a"}
ANSWER: Message = {"role": ASSISTANT, "content": "b"}
TOOL_RESULT: Message = {"role": "tool", "content": "c", "tool_call_id": _CALL_ID, "name": "f"}
SYSTEM: Message = {"role": "system", "content": "d"}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": "g",
            "parameters": {"type": "object", "properties": {"h": {"type": "string", "description": "i"}}},
        },
    }
]
_BY_ROLE = {"user": USER, "system": SYSTEM, ASSISTANT: ANSWER, "tool": TOOL_RESULT}


def sample_of(role: str) -> Message:
    """A short message of a role."""
    return _BY_ROLE.get(role) or {"role": role, "content": "c"}


def sample_calls() -> Iterator[Message]:
    """An assistant's message with a call, in each of the forms that templates ask for: arguments as an object or as
    JSON text, and an empty content or none.
    """
    for arguments in ({"h": "b"}, '{"h": "b"}'):
        call = {"id": _CALL_ID, "type": "function", "function": {"name": "f", "arguments": arguments}}
        yield {"role": ASSISTANT, "content": "", "tool_calls": [call]}
        yield {"role": ASSISTANT, "tool_calls": [call]}
