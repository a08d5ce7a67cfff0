"""One example per assistant turn, for templates that render the last turn differently."""

from collections import Counter
from hashlib import blake2b

import msgspec

from ...schemas.rows import Example, Message
from .conversation import is_silent


def per_turn(example: Example, start: int, skipped: Counter[str] | None) -> list[Example]:
    """Make an example of each assistant turn from message `start` on, with the messages before it as prompt.

    `sub` counts them from 0. All share one `group` (the example's own, or a digest of the conversation), so that a
    held-out split keeps them together. Turns with `train: false` are skipped as `not_trained`, empty ones as
    `empty_completion`. Messages after the last turn are in no example. A row without a turn to train stays one example.

    Args:
        example: prompt and completion are lists of messages.
    """
    assert isinstance(example.prompt, list)
    assert isinstance(example.completion, list)
    messages = example.prompt + example.completion
    turns = [i for i in range(start, len(messages)) if messages[i]["role"] == "assistant"]
    wanted = [i for i in turns if messages[i].get("train") is not False or _has_trained_part(messages[i])]
    trained = [i for i in wanted if not is_silent(messages[i])]
    if not trained:
        return [example]
    if skipped is not None and len(turns) > len(wanted):
        skipped["not_trained"] += len(turns) - len(wanted)
    if skipped is not None and len(wanted) > len(trained):
        skipped["empty_completion"] += len(wanted) - len(trained)
    group = example.group or blake2b(msgspec.json.encode([messages, example.tools]), digest_size=8).hexdigest()
    return [
        example._replace(sub=sub, group=group, prompt=messages[:i], completion=[messages[i]])
        for sub, i in enumerate(trained)
    ]


def _has_trained_part(message: Message) -> bool:
    content = message.get("content")
    return type(content) is list and any(isinstance(part, dict) and part.get("train") is True for part in content)
