"""Checks whether devices can share a model's attention heads, as sequence parallelism with `ulysses` does."""

from typing import Any

from ...schemas.parallel import Parallel
from .report import Check

_QUERIES = ("num_attention_heads",)
_KEYS = ("num_key_value_heads", "num_kv_heads", "num_global_key_value_heads")


def heads_check(config: Any, parallel: Parallel | None) -> list[Check]:
    """Check that each device gets whole heads; no check if the layout divides no heads, or the counts are not known.

    Each of cp · tp devices gets an equal number of query heads. It gets as many heads of keys and values, or one that
    it shares with others (DeepSpeed's `UlyssesSPAttentionHF` copies such heads).

    Args:
        config: the model's configuration, of transformers.
    """
    if parallel is None or parallel.layout != "ulysses" or parallel.cp == 1:
        return []
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    queries = _counts(text, _QUERIES)
    if not queries:
        return []
    keys = _counts(text, _KEYS) or queries
    good = [size for size in range(1, min(queries) + 1) if _fits(queries, keys, size * parallel.tp)]
    shown = f"{_named(queries)} query heads, {_named(keys)} of keys and values"
    devices = f"{parallel.cp} devices" + (f" times {parallel.tp} of tensor parallelism" if parallel.tp > 1 else "")
    wanted = f"a share of each for {devices}"
    choose = f"they can be for cp {', '.join(map(str, good))}" if good else "no cp would do with this tp"
    return [Check("heads", parallel.cp in good, shown, wanted, "" if parallel.cp in good else choose)]


def _fits(queries: set[int], keys: set[int], devices: int) -> bool:
    return all(count % devices == 0 for count in queries) and all(
        count % devices == 0 or devices % count == 0 for count in keys
    )


def _counts(config: Any, names: tuple[str, ...]) -> set[int]:
    found = [getattr(config, name, None) for name in names]
    return {count for count in found if type(count) is int and count > 0}


def _named(counts: set[int]) -> str:
    return " or ".join(map(str, sorted(counts)))
