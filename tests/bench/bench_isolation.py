"""Which of transformers' causal language models keep packed documents apart, and in which setting.

Builds a tiny model, weights at random, of every architecture that transformers can build here, and probes it four
ways. Prints the table of docs/isolation.md. Takes some minutes.

    python tests/bench/bench_isolation.py [--json FILE] [model_type ...]
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from packtrain.training.attention.apply import configs_of
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

if TYPE_CHECKING:
    from tests.training.probe.architectures import (
        ARCHITECTURES,
        alone,
        build,
        judge,
        unlike,
        with_default_cache,
        with_ones,
    )
else:
    sys.path.append(str(Path(__file__).parents[1] / "training" / "probe"))
    from architectures import ARCHITECTURES, alone, build, judge, unlike, with_default_cache, with_ones

WAYS: dict[str, tuple[str | None, Callable[[dict[str, Any]], Any]]] = {
    "own": (None, dict),
    "own, cache by default": (None, with_default_cache),
    "own, mask of ones": (None, with_ones),
    "auto": ("auto", dict),
}
SETTINGS = {one.kind: one.settings for one in ARCHITECTURES}
MOST = 50_000_000
"""Parameters of a model that is still tiny."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("kinds", nargs="*")
    arguments = parser.parse_args()
    began = time.perf_counter()
    found: dict[str, dict[str, str]] = {}
    not_built: dict[str, str] = {}
    for kind in arguments.kinds or MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        try:
            with torch.device("meta"):
                size = sum(weight.numel() for weight in build(kind, **settings(kind)).parameters())
            if size > MOST:
                raise ValueError(f"{size / 1e6:,.0f} M parameters even when shrunk")
            found[kind] = look(kind)
        except Exception as error:  # whatever an architecture raises on a configuration of our making
            not_built[kind] = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:90] if str(error) else ''}"
            continue
        print(f"{kind:28}" + "".join(f"{value:26}" for value in found[kind].values()), flush=True)
    print(f"\ntransformers {transformers.__version__}, torch {torch.__version__}; {len(found)} architectures, "
          f"{time.perf_counter() - began:,.0f} s")  # fmt: skip
    for way in WAYS:
        print(f"{way:24}", dict(Counter(one[way] for one in found.values()).most_common()))
    isolated = [one for one in found.values() if one["own"] == "isolated"]
    for way in list(WAYS)[1:3]:
        print(f"of the {len(isolated)} isolated with their own: {way}:", dict(Counter(one[way] for one in isolated)))
    groups: dict[tuple[str, str, str], list[str]] = {}
    for kind, one in found.items():
        groups.setdefault((one["own"], one["auto"], one["attention"]), []).append(kind)
    print("\n| with its own attention | attention: auto | takes | architectures |\n|---|---|---|---|")
    for (own, auto, attention), kinds in sorted(groups.items(), key=lambda group: -len(group[1])):
        print(f"| {own} | {auto} | {attention} | {', '.join(kinds)} |")
    for kind, why in not_built.items():
        print(f"not built: {kind}: {why}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"found": found, "not_built": not_built}, indent=1))


def settings(kind: str) -> dict[str, Any]:
    """What the architecture needs to be built at all, and no dropout in attention."""
    return SETTINGS.get(kind, {})


def look(kind: str) -> dict[str, str]:
    """The verdict for each way, and the attention that `auto` took."""
    found: dict[str, str] = {}
    model = build(kind, **settings(kind))
    for config in configs_of(model.config):
        config.use_cache = True  # as checkpoints have it; some architectures' defaults differ
    before = None
    for way, (attention, change) in WAYS.items():
        if attention is not None and found["own"] != "refused":
            before = alone(model)
        found[way], name = judge(model, attention, change)
    if before is not None and found["auto"] == "isolated" and unlike(alone(model), before) > 1e-4:
        found["auto"] = "isolated, but not the model's own attention"
    return {**found, "attention": name}


if __name__ == "__main__":
    main()
