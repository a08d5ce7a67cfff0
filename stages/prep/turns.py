"""One example for each turn of the assistant, for templates that write a last turn unlike the others."""

from collections import Counter
from hashlib import blake2b

import msgspec

from ...schemas.rows import Example
from .conversation import is_silent


def per_turn(example: Example, start: int, skipped: Counter[str] | None) -> list[Example]:
    """The assistant's turns of a conversation from message `start` on, each an example with what precedes it.

    `sub` counts them from 0. All carry one `group`, the example's own or a digest of the conversation, so that a
    held-out split does not cut through it. A turn with `train: false` gives no example and is counted as
    `not_trained`; one that says nothing as `empty_completion`. What follows the last turn is in no example. A row
    without a turn to train stays one example.

    Args:
        example: prompt and completion are lists of messages.
    """
    assert isinstance(example.prompt, list)
    assert isinstance(example.completion, list)
    messages = example.prompt + example.completion
    turns = [i for i in range(start, len(messages)) if messages[i]["role"] == "assistant"]
    wanted = [i for i in turns if messages[i].get("train") is not False]
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
