"""For workers of the tests: the first look compares the engines on a few of the texts on which tokenizers disagree.

All of them take a quarter of the time of a small run, and tests have some thousand runs. Those of `test_first_look.py`
and `test_engine_check.py`, which work in their own process, compare all.
"""

from typing import Any

from packtrain.pipeline.encode import first_look

look: Any = first_look
if hasattr(look, "fuzz_texts"):
    every = look.fuzz_texts
    look.fuzz_texts = lambda added_tokens: every(added_tokens)[::40]
