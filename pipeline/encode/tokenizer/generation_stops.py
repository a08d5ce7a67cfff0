"""The tokens at which a model's generation stops, as the generation_config.json beside its tokenizer names them."""

from pathlib import Path
from typing import Any

import msgspec

NAME = "generation_config.json"
_MAX_BYTES = 1 << 20
_MAX_STOPS = 64
_MAX_ID = (1 << 31) - 1


def generation_stops(folder: Path) -> tuple[int, ...]:
    """`eos_token_id` of a folder's generation_config.json, in the order of the file.

    The file is read as data, within limits; one that is absent or makes no sense names no stops.
    """
    try:
        with (folder / NAME).open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            return ()
        found: Any = msgspec.json.decode(content)
    except (OSError, msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return ()
    ids = found.get("eos_token_id") if type(found) is dict else None
    ids = ids if type(ids) is list else [ids]
    if len(ids) > _MAX_STOPS or not all(type(id) is int and 0 <= id <= _MAX_ID for id in ids):
        return ()
    return tuple(dict.fromkeys(ids))
