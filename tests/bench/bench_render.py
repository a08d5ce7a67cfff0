"""Microseconds a row: transformers' `apply_chat_template`, packtrain's jinja2, and its traces.

    PACKTRAIN_REALDATA=folder python tests/bench/bench_render.py

Prints a Markdown table. Both renderers of packtrain also find where the completion begins and where the assistant's
turns lie, for which jinja2 alone needs further renderings; transformers is asked for the text alone.
"""

import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from packtrain.stages.template.chat_template import ChatTemplate
from packtrain.stages.template.render import Renderer
from transformers import AutoTokenizer

ROWS = 2000
ROUNDS = 5


def main() -> None:
    """Runs the benchmark."""
    folder = Path(os.environ["PACKTRAIN_REALDATA"])
    print("| data | template | `apply_chat_template` | jinja2 | traced | traced rows | mismatches |")
    print("|---|---|---|---|---|---|---|")
    for data in ("gsm8k_train", "oasst_en100_paths"):
        with (folder / "chat" / f"{data}.jsonl").open(encoding="utf-8") as file:
            rows = [json.loads(line)["messages"] for line in file][:ROWS]
        pairs = [(row[:-1], row[-1:]) for row in rows]
        for path in sorted((folder / "tokenizers").iterdir()):
            tokenizer = AutoTokenizer.from_pretrained(path)
            template = ChatTemplate(tokenizer.chat_template, tokenizer.special_tokens_map, path.name)
            traced = Renderer(template)
            plain = Renderer(template, trace=False)
            cells = [
                measure(partial(oracle, tokenizer), pairs[:500]),
                measure(plain, pairs[:500]),
                measure(traced, pairs),
            ]
            share = traced.traced / (traced.traced + traced.rendered)
            print(
                f"| {data} | {path.name} | "
                + " | ".join(f"{cell:.2f}" for cell in cells)
                + f" | {share:.1%} | {traced.mismatches} |"
            )


def oracle(tokenizer: Any, prompt: Any, completion: Any) -> Any:
    """The text as transformers renders it."""
    return tokenizer.apply_chat_template(prompt + completion, tokenize=False)


def measure(render: Callable[[Any, Any], Any], pairs: list[tuple[Any, Any]]) -> float:
    """Median over rounds of the mean microseconds a row; one more round before warms up."""
    times = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        for prompt, completion in pairs:
            render(prompt, completion)
        times.append((time.perf_counter() - start) / len(pairs) * 1e6)
    return statistics.median(times[1:])


if __name__ == "__main__":
    main()
