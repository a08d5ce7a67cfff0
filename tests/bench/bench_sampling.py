"""What the sampling proof finds under every chat template at hand: a Markdown table of turns by outcome.

    PACKTRAIN_REALDATA=folder python tests/bench/bench_sampling.py

Templates are the files of TRL's wheel and those of the tokenizers in `folder`. Conversations are the first of GSM8K
(one turn), OASST (several), SGD (with tools) and tau-bench (tools, as logged). The models' own tokenizers are not at
hand for TRL's templates: the demo's, which splits text as Qwen's and Llama 3's do, stands for them, with the special
tokens that a template's source names added to it.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import trl
from packtrain.pipeline import demo
from packtrain.schemas.errors import PacktrainError
from packtrain.schemas.ragged import begins_of
from packtrain.schemas.rows import ASSISTANT_KINDS, Example
from packtrain.stages.arrays import view
from packtrain.stages.mask.sampling import Outcome, StopTokens, prove
from packtrain.stages.template.chat_template import ChatTemplate
from packtrain.stages.template.render import Renderer
from packtrain.stages.tokenize.byte_lengths import ByteLengths
from packtrain.stages.tokenize.encode import Encoder, Refused, SpecialTokenAffixes
from packtrain.stages.tokenize.encode_counts import EncodeCounts
from packtrain.stages.tokenize.engines import Engine, make_engine, reference_tokenizer, tokenizer_head
from packtrain.stages.tokenize.prompts_alone import PromptAlone

ROWS = {"gsm8k_train": 15, "oasst_en100_paths": 15, "sgd_dev": 8, "tau_bench_gpt4o_airline": 8}
SPECIAL = re.compile(
    r"<\|[^|<>\s{}'\"]+\|>|<｜[^｜\s]+｜>|<\|(?:turn|tool_call|tool_response|tool|channel)>|"
    r"<(?:turn|tool_call|tool_response|tool|channel)\|>|<(?:start|end)_of_turn>|<end_of_utterance>|\[gMASK\]|<sop>"
)
BOS, EOS = "<s>", "</s>"
ENGINE = "tokenizers"
DATE = "2024-07-26"
COLUMNS = (Outcome.EXACT, Outcome.PREFIX, Outcome.PAST_STOP, Outcome.NEXT_HEADER, Outcome.MISSING, Outcome.UNPROVED)
LOST = ("system", "tools", "tool_calls", "tool_results")


class Tried(NamedTuple):
    """A template to try, with its variables and a tokenizer."""

    name: str
    source: str
    variables: dict[str, Any]
    tokenizer: str


def main() -> None:
    """Print the table."""
    folder = Path(os.environ["PACKTRAIN_REALDATA"])
    chats = [chat for name in ROWS for chat in _chats(folder / "chat" / f"{name}.jsonl", ROWS[name])]
    print(f"| template | {' | '.join(COLUMNS)} | rows refused | trained tokens |")
    print(f"|---|{'--:|' * (len(COLUMNS) + 2)}")
    for tried in _templates(folder / "tokenizers"):
        found, refused, tokens = outcomes(tried, chats)
        cells = [f"{found[one]:,}" for one in COLUMNS] + [f"{refused:,}", f"{tokens:,}"]
        print(f"| {tried.name} | {' | '.join(cells)} |", flush=True)


def _chats(path: Path, count: int) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for line, _ in zip(file, range(count), strict=False):
            yield json.loads(line)


def _templates(tokenizers: Path) -> Iterator[Tried]:
    for path in sorted(tokenizers.iterdir()):
        config = json.loads((path / "tokenizer_config.json").read_text())
        own = {key: value for key, value in config.items() if key.endswith("_token") and isinstance(value, str)}
        source, tokenizer = (path / "chat_template.jinja").read_text(), (path / "tokenizer.json").read_text()
        yield Tried(f"{path.name} (its own tokenizer)", source, own, tokenizer)
        if "enable_thinking" in source:
            off = {**own, "enable_thinking": False}
            yield Tried(f"{path.name} (its own tokenizer), thinking off", source, off, tokenizer)
    base = json.loads((Path(demo.__file__).parent / "tokenizer" / "tokenizer.json").read_text())
    for path in sorted((Path(trl.__file__).parent / "chat_templates").glob("*.jinja")):
        source = path.read_text()
        tokenizer = json.dumps(_with_special(base, source))
        variables = {"bos_token": BOS, "eos_token": EOS}
        yield Tried(path.stem, source, variables, tokenizer)
        if "enable_thinking" in source and "_training" not in path.stem:
            yield Tried(f"{path.stem}, thinking off", source, {**variables, "enable_thinking": False}, tokenizer)


def _with_special(tokenizer: dict[str, Any], source: str) -> dict[str, Any]:
    """The tokenizer with the special tokens of a template."""
    known = {token["content"] for token in tokenizer["added_tokens"]}
    first = 1 + max(*tokenizer["model"]["vocab"].values(), *(token["id"] for token in tokenizer["added_tokens"]))
    added = [
        {"id": first + number, "content": text, "special": True, "normalized": False}
        | dict.fromkeys(("lstrip", "rstrip", "single_word"), False)
        for number, text in enumerate(sorted({BOS, EOS, *SPECIAL.findall(source)} - known))
    ]
    return {**tokenizer, "added_tokens": [*tokenizer["added_tokens"], *added]}


def outcomes(tried: Tried, chats: list[dict[str, Any]]) -> tuple[Counter[str], int, int]:
    """Turns by outcome, the number of rows that the template refuses, and the tokens of located turns."""
    added = tokenizer_head(tried.tokenizer).added_tokens
    template = ChatTemplate(tried.source, tried.variables, tried.name, DATE)
    renderer = Renderer(template, stops=[token.content for token in added if token.special], allow_lost=LOST)
    engine: Engine = make_engine(ENGINE, tried.tokenizer)
    table = ByteLengths.from_json(tried.tokenizer)
    encoder = Encoder(
        engine, renderer, table, SpecialTokenAffixes(), lambda: reference_tokenizer(tried.tokenizer), prove=True
    )
    ids = {token.content: token.id for token in added}
    stops = StopTokens.of(renderer.stop_tokens, (), tried.variables.get("eos_token"), ids).ids
    rows = chats if _takes_texts(template) else [_in_parts(chat) for chat in chats]
    examples = [
        Example(number, -1, "", row["messages"][:-1], row["messages"][-1:], None, row.get("tools"))
        for number, row in enumerate(rows)
    ]
    refused: list[Refused] = []
    alone: list[PromptAlone] = []
    found, tokens = Counter[str](), 0
    for batch in encoder.encode(examples, EncodeCounts(), refused, [], alone):
        found.update(str(one.outcome) for one in prove(batch, alone, stops))
        runs = batch.column("runs")
        ends, kinds = view(runs.values.field("end")), view(runs.values.field("kind"))
        tokens += int((ends - begins_of(ends, view(runs.offsets)))[np.isin(kinds, ASSISTANT_KINDS)].sum())
    return found, len(refused), tokens


def _takes_texts(template: ChatTemplate) -> bool:
    """Whether a template writes contents that are texts; some write only lists of parts."""
    try:
        return "aa" in template.render([{"role": "user", "content": "aa"}])
    except PacktrainError:
        return False


def _in_parts(chat: dict[str, Any]) -> dict[str, Any]:
    """A conversation with lists of parts as contents."""
    said = [
        {**message, "content": [{"type": "text", "text": message["content"]}]} if message.get("content") else message
        for message in chat["messages"]
    ]
    return {**chat, "messages": said}


if __name__ == "__main__":
    main()
