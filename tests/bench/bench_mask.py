"""What masks cost: nanoseconds a token of encoding, and packtrain beside transformers and TRL on the same chats.

    PACKTRAIN_REALDATA=folder python tests/bench/bench_mask.py [--rows N] [--skip-trl]

1. Conversations of one turn (GSM8K, traced) and of many with tools (SGD, marked), encoded in turns: parse, render,
   tokenize, runs. The share of masks is the time within the functions that find turns and place runs. Beside it, what
   plain Python costs for the same rows without any mask: `json.loads`, transformers' `apply_chat_template`, and
   `tokenizers`, row by row. Its ratio of many turns to one says what part of packtrain's ratio is in the data.
2. The same many-turn conversations: packtrain's encoding; transformers' `apply_chat_template` with
   `return_assistant_tokens_mask=True`, row by row, with a template that marks what the assistant says; TRL's
   preparation (`SFTTrainer`, `assistant_only_loss`, one process) with that template. Tables are Markdown.

Times are processor seconds of this process, medians of interleaved rounds. The engine has met the texts before from the
second round on, and is quicker then: the first round is shown separately.
"""

import argparse
import gc
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from packtrain.pipeline.encode.prepared import make_spec
from packtrain.pipeline.encode.task import make_renderer
from packtrain.pipeline.encode.tokenizer.load import load_tokenizer
from packtrain.schemas.config.config import TokenizerConfig
from packtrain.stages.prep import MessagesOptions, make_format
from packtrain.stages.template import render as render_module
from packtrain.stages.tokenize import encode as encode_module
from packtrain.stages.tokenize.byte_lengths import ByteLengths
from packtrain.stages.tokenize.encode import Encoder
from packtrain.stages.tokenize.encode_counts import EncodeCounts
from packtrain.stages.tokenize.engines import make_engine, reference_tokenizer
from packtrain.stages.tokenize.prompts_alone import PromptAlone
from packtrain.stages.tokenize.token_runs import RunBatch

ROUNDS = 5
PROVED = 300
"""Conversations whose turns are proved."""
TOKENIZER = "qwen3"
HEADER = "{{- '<|im_start|>' + message.role + '\\n"
LAST = "        {%- if loop.index0 > ns.last_query_index %}"
CLOSE = "        {{- '<|im_end|>\\n' }}\n    {%- elif message.role == \"tool\" %}"
OPENED = HEADER + "' }}{% generation %}" + LAST.strip()
CLOSED = "        {{- '<|im_end|>' }}{% endgeneration %}{{- '\\n' }}\n    {%- elif message.role == \"tool\" %}"


class Stopwatch:
    """Seconds spent within some functions."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, holder: Any, name: str) -> None:
        """Time a function, wherever it is called from through `holder`."""
        inner = getattr(holder, name)

        @wraps(inner)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.process_time()
            try:
                return inner(*args, **kwargs)
            finally:
                self.seconds += time.process_time() - began

        setattr(holder, name, timed)


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2098)
    parser.add_argument("--skip-trl", action="store_true")
    parser.add_argument("--only-encoding", action="store_true", help="the first table and what it costs to prove turns")
    arguments = parser.parse_args()
    folder = Path(os.environ["PACKTRAIN_REALDATA"])
    lines = {
        data: list(enumerate((folder / "chat" / f"{data}.jsonl").read_bytes().splitlines()[:limit]))
        for data, limit in (("gsm8k_train", 7473), ("sgd_dev", arguments.rows))
    }
    encoder = encoder_of(folder)
    gc.disable()
    rounds: dict[str, list[float]] = {data: [] for data in lines}
    tokens: dict[str, int] = {}
    for _ in range(ROUNDS):
        for data, rows in lines.items():
            seconds, tokens[data] = encoded(encoder, rows)
            rounds[data].append(seconds)
    first = {data: times[0] / tokens[data] * 1e9 for data, times in rounds.items()}
    later = {data: statistics.median(times[1:]) / tokens[data] * 1e9 for data, times in rounds.items()}

    watch = Stopwatch()
    for name in ("locate", "runs_of", "divided"):
        watch.around(render_module, name)
    watch.around(encode_module, "locate_boundaries")
    watch.around(RunBatch, "bounds")
    watch.around(RunBatch, "tokens")
    plain = plain_costs(folder, lines)
    print(
        "| data | tokens | first round, ns a token | later | mask work | plain rendering, ns a token | and all else |"
    )
    print("|---|---|---|---|---|---|---|")
    for data, rows in lines.items():
        watch.seconds = 0.0
        seconds, _ = encoded(encoder, rows)
        rendering, rest = (seconds / tokens[data] * 1e9 for seconds in plain[data])
        print(
            f"| {data} | {tokens[data]:,} | {first[data]:.0f} | {later[data]:.0f} | {watch.seconds / seconds:.0%} "
            f"| {rendering:.0f} | {rest:.0f} |"
        )
    rendering_of = {data: plain[data][0] / tokens[data] for data in lines}
    print(
        f"\nmany turns to one: {first['sgd_dev'] / first['gsm8k_train']:.2f} in the first round, "
        f"{later['sgd_dev'] / later['gsm8k_train']:.2f} later; "
        f"plain rendering {rendering_of['sgd_dev'] / rendering_of['gsm8k_train']:.2f}\n"
    )
    print("| data | seconds, the least of the later rounds | ns a token | with `mask.prove: sampling`, times as long |")
    print("|---|---|---|---|")
    for data, rows in lines.items():
        least = min(rounds[data][1:])
        encoder.prove = True
        proved = min(encoded(encoder, rows[:PROVED], [])[0] for _ in range(ROUNDS))
        encoder.prove = False
        plainly = min(encoded(encoder, rows[:PROVED])[0] for _ in range(ROUNDS))
        print(f"| {data} | {least:.3f} | {least / tokens[data] * 1e9:.0f} | {proved / plainly:.1f} |")
    if arguments.only_encoding:
        return
    ours = rounds["sgd_dev"][0]
    print("| who | seconds | times packtrain |")
    print("|---|---|---|")
    print(f"| packtrain, first round | {ours:.2f} | 1 |")
    chats = [json.loads(line) for _, line in lines["sgd_dev"]]
    theirs = transformers_alone(folder, chats)
    print(f"| transformers, masks row by row | {theirs:.2f} | {theirs / ours:.1f} |")
    if not arguments.skip_trl:
        theirs = trl_preparation(folder, chats)
        print(f"| TRL's preparation | {theirs:.2f} | {theirs / ours:.1f} |")


def encoder_of(folder: Path) -> Encoder:
    """As a worker has it, with the fastest engine."""
    tokenizer = load_tokenizer(folder / "tokenizers" / TOKENIZER)
    spec = make_spec(tokenizer, TokenizerConfig(path=""), "fastokens", "", needs_template=True)
    assert spec.template is not None
    return Encoder(
        make_engine("fastokens", spec.tokenizer_json),
        make_renderer(spec, spec.template),
        ByteLengths.from_json(spec.tokenizer_json),
        spec.around,
        lambda: reference_tokenizer(spec.tokenizer_json),
    )


def encoded(
    encoder: Encoder, lines: list[tuple[int, bytes]], alone: list[PromptAlone] | None = None
) -> tuple[float, int]:
    """Processor seconds from lines to encoded batches, and tokens.

    Args:
        alone: gets the prompts of turns, as in a run; None: these are not rendered.
    """
    began = time.process_time()
    counts = EncodeCounts()
    examples = make_format("messages", MessagesOptions()).prepare(lines).examples
    for _ in encoder.encode(examples, counts, [], [], alone):
        pass
    assert counts.unproved == 0
    return time.process_time() - began, counts.tokens


def plain_costs(folder: Path, lines: dict[str, list[tuple[int, bytes]]]) -> dict[str, tuple[float, float]]:
    """For each data, processor seconds of `apply_chat_template`, and of `json.loads` and `tokenizers` together: the
    least of two rounds.
    """
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder / "tokenizers" / TOKENIZER)
    backend = tokenizer.backend_tokenizer
    out: dict[str, tuple[float, float]] = {}
    for data, rows in lines.items():
        found: list[tuple[float, float]] = []
        for _ in range(2):
            began = time.process_time()
            chats = [json.loads(line) for _, line in rows]
            parsed = time.process_time()
            texts = [
                tokenizer.apply_chat_template(chat["messages"], tools=chat.get("tools"), tokenize=False)
                for chat in chats
            ]
            rendered = time.process_time()
            for text in texts:
                backend.encode(text, add_special_tokens=False)
            found.append((rendered - parsed, parsed - began + time.process_time() - rendered))
        out[data] = min(one for one, _ in found), min(rest for _, rest in found)
    return out


def marked_tokenizer(folder: Path) -> Any:
    """By transformers, its template with marks."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizers" / TOKENIZER)
    template = tokenizer.chat_template
    pairs = ((LAST, OPENED), (HEADER + "<think>", "{{- '<think>"), (HEADER + "' + content }}", "{{- content }}"))
    for what, by in (*pairs, (CLOSE, CLOSED)):
        assert what in template
        template = template.replace(what, by)
    tokenizer.chat_template = template
    return tokenizer


def transformers_alone(folder: Path, chats: list[dict[str, Any]]) -> float:
    """Processor seconds of `apply_chat_template` with masks."""
    tokenizer = marked_tokenizer(folder)
    render: Callable[..., Any] = tokenizer.apply_chat_template
    began = time.process_time()
    for chat in chats:
        render(chat["messages"], tools=chat.get("tools"), return_assistant_tokens_mask=True, return_dict=True)
    return time.process_time() - began


def trl_preparation(folder: Path, chats: list[dict[str, Any]]) -> float:
    """Wall seconds of `SFTTrainer._prepare_dataset` in one process."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    from datasets import Dataset
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl import SFTConfig, SFTTrainer

    tokenizer = marked_tokenizer(folder)
    spent = 0.0

    class Timed(SFTTrainer):  # type: ignore[misc]
        def _prepare_dataset(self, *arguments: Any, **keywords: Any) -> Any:
            nonlocal spent
            began = time.perf_counter()
            try:
                return super()._prepare_dataset(*arguments, **keywords)
            finally:
                spent += time.perf_counter() - began

    rows = [{"messages": chat["messages"], "tools": json.dumps(chat.get("tools"))} for chat in chats]
    for row in rows:
        for message in row["messages"]:
            for call in message.get("tool_calls") or ():
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    size: dict[str, Any] = dict.fromkeys(("hidden_size", "intermediate_size"), 8)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, **size
        )
    )
    with tempfile.TemporaryDirectory() as out:
        settings = SFTConfig(
            output_dir=out, max_length=None, assistant_only_loss=True, use_cpu=True, bf16=False, report_to=[]
        )
        Timed(model=model, args=settings, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
    return spent


if __name__ == "__main__":
    main()
