"""The tokenizer engines: libraries that turn texts into tokens, all of them into the same tokens.

What loads each is in `stages/tokenize/engines.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

AUTO = "auto"
"""The configuration's choice that takes the first engine that is installed."""
REFERENCE = "tokenizers"
"""The engine that decides what is right."""


@dataclass(frozen=True, slots=True)
class TokenizerEngine:
    """What must be known of an engine before it is loaded."""

    name: str
    """Of its package."""
    one_thread: Mapping[str, str] = field(default_factory=dict)
    """Variables of the environment that keep it to one thread, read when its library starts threads."""


TOKENIZER_ENGINES = {
    engine.name: engine
    for engine in (
        TokenizerEngine("fastokens", {"FASTOKENS_BPE_THREADS": "1"}),
        TokenizerEngine(REFERENCE, {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}),
    )
}
"""Every engine by its name, the one to try first at the beginning; the reference last."""
