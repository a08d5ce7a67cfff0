"""The result for a row depends on that row alone: it stays the same if rows are shuffled, repeated or dropped."""

import functools
import itertools
import json
import os
import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from packtrain.pipeline import demo
from packtrain.schemas.errors import PacktrainError
from packtrain.schemas.rows import Example, RunKind
from packtrain.stages.template.chat_template import ChatTemplate
from packtrain.stages.template.render import Renderer
from packtrain.stages.tokenize.encode import Encoder, SpecialTokenAffixes
from packtrain.stages.tokenize.encode_counts import EncodeCounts, Refused
from packtrain.stages.tokenize.engine_check import EngineSample
from packtrain.stages.tokenize.engines import Engine, make_engine

REALDATA = os.environ.get("PACKTRAIN_REALDATA", "")
TOKENIZER = (Path(demo.__file__).parent / "tokenizer" / "tokenizer.json").read_text()
LOSABLE = ("system", "tools")
EVERYTHING = (*LOSABLE, "user", "assistant", "tool_calls", "tool_results")
STOPS = ("<|im_end|>", "<|eot_id|>", "</s>", "<|end|>", "<end_of_turn>", "<|EOT|>")

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Public instruct models do so: the system message stands before the last question only.
LATE_SYSTEM = (
    "{% set system = '' %}{% set turns = messages %}{% if messages[0].role == 'system' %}"
    "{% set system = messages[0].content %}{% set turns = messages[1:] %}{% endif %}"
    "{% for m in turns %}{% if m.role == 'user' %}[ASK]{% if loop.last and system %} {{ system }}\n\n{% endif %}"
    " {{ m.content }}[/ASK]{% else %} {{ m.content }}<|im_end|>{% endif %}{% endfor %}"
)
TRICKY = {
    "late system": LATE_SYSTEM,
    # The same template, with its own marks.
    "late system, marked": LATE_SYSTEM.replace(
        " {{ m.content }}<|im_end|>", " {% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    ),
    # Where the row has a system message, the generation prompt is another one.
    "opening by system": CHATML.replace(
        "<|im_start|>assistant\n{% endif %}",
        "<|im_start|>assistant\n{{ '<think>\n' if messages[0].role == 'system' }}{% endif %}",
    ),
    # The prompt alone is stripped, the conversation is not.
    "strips prompts": CHATML.replace(
        "{{ m.content }}", "{{ m.content | trim if add_generation_prompt else m.content }}"
    ),
    # Every other conversation is told how many messages it has.
    "counts": "{% if messages | length > 3 %}{{ messages | length }}: {% endif %}" + CHATML,
    "tools at the last question": (
        "{% for m in messages %}{% if loop.last or loop.nextitem is defined and loop.revindex == 2 %}"
        "{{ tools | tojson if tools else '' }}{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}"
        "{% endfor %}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "looks into contents": CHATML.replace(
        "{{ m.content }}", "{{ m.content.split('</think>')[-1] if 'b' in m.content else m.content ~ m.name }}"
    ),
    "writes no contents": "{% for m in messages %}<{{ m.role }}>{% endfor %}",
    "never proved": "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}abc{% endif %}",
    "indents its tools": "{{ tools | tojson(indent=1) if tools else '' }}{{ tools | tojson(separators=[',', ':']) }}"
    + CHATML,
}


def templates() -> dict[str, str]:
    """Those above, of the tokenizers at hand, and those that trl brings."""
    found = dict(TRICKY)
    folders = sorted(Path(REALDATA, "tokenizers").iterdir()) if REALDATA else []
    for folder in folders:
        config = json.loads((folder / "tokenizer_config.json").read_text())
        file = folder / "chat_template.jinja"
        found[folder.name] = config.get("chat_template") or file.read_text()
    trl = find_spec("trl")
    for place in trl.submodule_search_locations if trl and trl.submodule_search_locations else ():
        for file in sorted(Path(place, "chat_templates").glob("*.jinja")):
            found[f"trl {file.stem}"] = file.read_text()
    return found


TEMPLATES = templates()
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
TOOLS = [
    None,
    [],
    [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}],
    [{"type": "function", "function": {"name": "g", "description": "e", "parameters": {"type": "object"}}}] * 2,
]
TEXTS = ("a", "b", " a ", "", "abc", "abcd", "<think>\nb\n</think>\n\na", "<|im_end|>", "Rule.", "é\n")

texts = st.sampled_from(TEXTS)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[dict[str, Any]], int, Any]:
    """Messages, how many of them are the prompt, and tools."""
    messages: list[dict[str, Any]] = []
    if draw(st.booleans()):
        messages.append({"role": "system", "content": draw(texts)})
    for _ in range(draw(st.integers(1, 3))):
        question = {"role": "user", "content": draw(texts)}
        if draw(st.integers(0, 3)) == 0:
            question["name"] = "u"
        messages.append(question)
        if draw(st.integers(0, 4)) == 0:
            call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": {"x": draw(texts)}}}
            messages.append({"role": "assistant", "content": draw(texts), "tool_calls": [call]})
            messages.append({"role": "tool", "name": "f", "tool_call_id": "call00000", "content": draw(texts)})
        answer: dict[str, Any] = {"role": "assistant", "content": draw(texts)}
        if draw(st.integers(0, 5)) == 0:
            answer["train"] = draw(st.booleans())
        if draw(st.integers(0, 5)) == 0:
            answer["reasoning_content"] = draw(texts)
        messages.append(answer)
    cut = draw(st.sampled_from([len(messages) - 1] * 3 + [0, 1, len(messages)]))
    return messages, cut, draw(st.sampled_from(TOOLS)) if draw(st.booleans()) else None


@functools.cache
def engine() -> Engine:
    """The reference."""
    return make_engine("tokenizers", TOKENIZER)


def encoder_of(source: str) -> Encoder:
    """A fresh one, which has met no row."""
    renderer = Renderer(ChatTemplate(source, VARIABLES, "t", "2024-07-26"), stops=STOPS, allow_lost=LOSABLE)
    return Encoder(TOKENIZER, engine(), renderer, SpecialTokenAffixes())


def outcomes(encoder: Encoder, rows: list[Any]) -> list[Any]:
    """Of each row: its ids, runs and digest, and why its turns are unproved, if they are; or why it is refused."""
    examples = [
        Example(line, -1, "", messages[:cut], messages[cut:], None, tools)
        for line, (messages, cut, tools) in enumerate(rows)
    ]
    counts, refused, samples = EncodeCounts(), list[Refused](), list[EngineSample]()
    batches = list(encoder.encode(examples, counts, refused, samples))
    unproved = {one.line: one.detail for one in counts.places if one.kind == "unproved"}
    out: dict[int, Any] = {one.line: (one.reason, one.detail) for one in refused}
    for batch in batches:
        for row in batch.to_pylist():
            out[row["line"]] = (
                row["input_ids"],
                row["runs"],
                row["digest"],
                row["straddles"],
                unproved.get(row["line"]),
            )
    return [out[line] for line in range(len(rows))]


def require_pure(source: str, rows: list[Any], seed: int) -> None:
    """Holds what rows get in any company against what they get alone, and against the exact way."""
    try:
        alone = [outcomes(encoder_of(source), [row])[0] for row in rows]
    except PacktrainError:  # the template needs what no row gives it
        return
    order = [*range(len(rows)), *range(len(rows))]
    random.Random(seed).shuffle(order)
    encoder = encoder_of(source)
    for part in (order, order[::-1], order[: len(order) // 2]):
        assert outcomes(encoder, [rows[index] for index in part]) == [alone[index] for index in part]
    assert encoder.renderer is not None
    assert encoder.renderer.mismatches == 0
    # And each is what the exact way says.
    exact = Renderer(encoder.renderer.template, trace=False, stops=STOPS, allow_lost=LOSABLE)
    quick = encoder.renderer
    encoder = encoder_of(source)
    encoder.renderer = exact
    for row, wanted in zip(rows, outcomes(encoder, rows), strict=True):
        assert outcomes(Encoder(TOKENIZER, engine(), quick, SpecialTokenAffixes()), [row]) == [wanted]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name.startswith("trl") else name for name in TEMPLATES]
)
def test_rows_do_not_depend_on_their_neighbours(name: str) -> None:
    @settings(
        max_examples=3,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        derandomize=True,
        phases=[Phase.generate],  # a row that is pure alone cannot be shrunk quickly
    )
    @given(st.lists(conversations(), min_size=12, max_size=12), st.integers(0, 99))
    def compare(rows: list[Any], seed: int) -> None:
        require_pure(TEMPLATES[name], rows, seed)

    compare()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name.startswith("trl") else name for name in TEMPLATES]
)
def test_no_words_of_the_prompt_are_trained(name: str) -> None:
    renderer = Renderer(ChatTemplate(TEMPLATES[name], VARIABLES, "t", "2024-07-26"), stops=STOPS, allow_lost=EVERYTHING)
    call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": {"x": "zqcall"}}}
    first = [{"role": "user", "content": "zqone"}, {"role": "assistant", "content": "zqtwo"}]
    tool: list[dict[str, Any]] = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "f", "tool_call_id": "call00000", "content": "zqtool"},
    ]
    for system, turns, answered, named, by_tool in itertools.product((0, 1), (0, 1, 2), (1, 2), (0, 1), (0, 1)):
        prompt: list[dict[str, Any]] = [{"role": "system", "content": "zqrule"}] * system + first * turns
        prompt.append({"role": "user", "content": "zqask", **({"name": "zqu"} if named else {})})
        prompt += tool * by_tool
        answers = [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "more"}] * answered
        try:
            text, _, runs = renderer(prompt, answers[:-1], TOOLS[2] if by_tool else None)[:3]
        except PacktrainError:
            continue  # the template refuses it
        done = 0
        for end, kind in zip(runs.ends, runs.kinds, strict=True):
            if kind in (RunKind.COMPLETION, RunKind.ASSISTANT, RunKind.END, RunKind.UNPROVED_COMPLETION):
                assert "zq" not in text[done:end], (text, runs)
            done = end
        trained = [
            kind for kind in runs.kinds if kind in (RunKind.COMPLETION, RunKind.ASSISTANT, RunKind.UNPROVED_COMPLETION)
        ]
        assert trained or "yes" not in text


def test_an_empty_question_beside_a_generation_block() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% else %}"
        "{% generation %}<a>{{ m.content }}</s>{% endgeneration %}{% endif %}{% endfor %}"
    )
    for first, second in (("", "q"), ("q", ""), ("", "")):
        questions = [{"role": "user", "content": text} for text in (first, second)]
        answers = [{"role": "assistant", "content": text} for text in ("one", "two")]
        messages = [questions[0], answers[0], questions[1], answers[1]]
        assert outcomes(encoder_of(source), [(messages, 3, None)])[0][-1] is None
        require_pure(source, [(messages, 3, None), (messages, 0, None)], 1)
