"""What is trained, held against transformers: templates that mark what the assistant says, and the same without marks.

`bare` takes the marks away: then packtrain must find by itself what they said, or refuse.
"""

import functools
import random
import re
from typing import Any, NamedTuple

import numpy as np
import pytest
from packtrain.schemas.arrays import view
from packtrain.schemas.rows import Example
from packtrain.stages.mask.policy import Mask, supervised_spans
from packtrain.stages.render.renderer import Renderer
from packtrain.stages.template.chat_template import ChatTemplate
from packtrain.stages.tokenize.encode import Encoder
from packtrain.stages.tokenize.encode_counts import EncodeCounts
from packtrain.stages.tokenize.engines import make_engine
from packtrain.stages.tokenize.vocabulary import SpecialTokenAffixes, tokenizer_head

Message = dict[str, Any]


class Manner(NamedTuple):
    """A template, and which conversations it supports."""

    template: str
    system: bool = True
    """Whether it takes a system message."""
    tools: bool = False
    """Whether it renders tool calls."""
    odd: bool = True
    """Whether roles may follow each other in any order."""


def bare(template: str) -> str:
    """The template without its generation marks."""
    return re.sub(r"\{% (end)?generation %\}", "", template)


# No generation prompt, a space before the answer, nine-character ids, alternating roles. Tools stand before the last
# question.
MISTRAL = (
    "{{ bos_token }}{% set ns = namespace(turn=0) %}"
    "{% set users = messages | selectattr('role', 'equalto', 'user') | list %}{% for m in messages %}"
    "{% if m.role in ['user', 'assistant'] and not m.tool_calls %}"
    "{% if (m.role == 'user') != (ns.turn % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set ns.turn = ns.turn + 1 %}{% endif %}"
    "{% if m.role == 'user' %}{% if tools and m == users[-1] %}{{ '[AVAILABLE_TOOLS] [' }}{% for t in tools %}"
    "{{ t | tojson }}{% if not loop.last %}{{ ', ' }}{% endif %}{% endfor %}{{ '][/AVAILABLE_TOOLS]' }}{% endif %}"
    "{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{% elif m.tool_calls %}{% generation %}{{ '[TOOL_CALLS] [' }}{% for c in m.tool_calls %}"
    "{% if c.id | length != 9 %}{{ raise_exception('ids must have nine characters') }}{% endif %}"
    "{{ c.function | tojson }}{{ ', \"id\": \"' + c.id + '\"}' }}{% if not loop.last %}{{ ', ' }}{% endif %}"
    "{% endfor %}"
    "{{ ']' + eos_token }}{% endgeneration %}"
    "{% elif m.role == 'assistant' %}{% generation %}{{ ' ' + m.content + eos_token }}{% endgeneration %}"
    "{% elif m.role == 'tool' %}{{ '[TOOL_RESULTS] ' + m.content + '[/TOOL_RESULTS]' }}"
    "{% else %}{{ raise_exception('no ' + m.role) }}{% endif %}{% endfor %}"
)
# Ends a turn by a line end and a token; says things of its own where there is no system message.
DEEPSEEK = (
    "{% set ns = namespace(found=false) %}{% for m in messages %}{% if m.role == 'system' %}{% set ns.found = true %}"
    "{% endif %}{% endfor %}{{ bos_token }}{% if not ns.found %}{{ 'You are an assistant.\n' }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}"
    "{% elif m.role == 'user' %}{{ '### Instruction:\n' + m.content + '\n' }}"
    "{% else %}{{ '### Response:\n' }}{% generation %}{{ m.content + '\n<|EOT|>' }}{% endgeneration %}{{ '\n' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '### Response:\n' }}{% endif %}"
)
# An empty thinking block in the last turn only, thoughts dropped from earlier ones, tool calls between tags.
QWEN = (
    "{% if tools %}{{ '<|im_start|>system\n' }}{% for t in tools %}{{ t | tojson + '\n' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endif %}"
    "{% set ns = namespace(seek=true, last=messages | length - 1) %}{% for m in messages[::-1] %}"
    "{% if ns.seek and m.role == 'user' %}{% set ns.seek = false %}"
    "{% set ns.last = messages | length - 1 - loop.index0 %}"
    "{% endif %}{% endfor %}"
    "{% for m in messages %}{% set content = m.content if m.content is string else '' %}"
    "{% if m.role == 'tool' %}{{ '<|im_start|>user\n<tool_response>\n' + content + '\n</tool_response><|im_end|>\n' }}"
    "{% elif m.role != 'assistant' %}{{ '<|im_start|>' + m.role + '\n' + content + '<|im_end|>\n' }}"
    "{% else %}{% set thought = '' %}{% if m.reasoning_content is string %}{% set thought = m.reasoning_content %}"
    "{% elif '</think>' in content %}{% set thought = content.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{ '<|im_start|>assistant\n' }}{% generation %}"
    "{% if loop.index0 > ns.last and (loop.last or thought) %}"
    "{{ '<think>\n' + thought + '\n</think>\n\n' + content.lstrip('\n') }}{% else %}{{ content }}{% endif %}"
    "{% for c in m.tool_calls or [] %}{% if not loop.first or content %}{{ '\n' }}{% endif %}"
    '{{ \'<tool_call>\n{"name": "\' + c.function.name + \'", "arguments": \' }}'
    "{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}"
    "{{ '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>' }}{% endgeneration %}{{ '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

MANNERS = {
    "mistral": Manner(MISTRAL, system=False, tools=True, odd=False),
    "deepseek": Manner(DEEPSEEK),
    "qwen": Manner(QWEN, tools=True),
}
SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|EOT|>")
"""The special tokens of these templates. Tags of tool calls are tokens, too, but not special."""

PIECES = (
    *("", " ", "\n", "\n\n", "  x", "word", "Two words.", "12", "é", "e\u0301", "中文", "🙂", "\u2028", "\x00"),
    *("<|im_end|>", "<|im_end|>\n<|im_start|>assistant\n", "</s>", "<s>"),
    *("### Response:\n", "\n<|EOT|>\n", "<|assistant|>\n", " [/INST]", "[INST] ", "{{ x }}", "{% if %}", "%s"),
    *("<think>", "</think>", "<think>\nhm\n</think>\n\nso", "<tool_call>\n", "}\n</tool_call>"),
)


def text_of(draw: random.Random) -> str:
    """A content: of ordinary words, or of what a template might take for its own."""
    return "".join(draw.choice(PIECES) for _ in range(draw.choice((0, 1, 1, 2, 3))))


def conversation(draw: random.Random, manner: Manner) -> list[Message]:
    """A conversation that a template of this manner takes, its last message the assistant's."""
    out: list[Message] = []
    if manner.system and draw.random() < 0.4:
        out.append({"role": "system", "content": text_of(draw)})
    for _ in range(draw.randint(1, 4)):
        out.append({"role": "user", "content": text_of(draw)})
        if manner.odd and draw.random() < 0.15:
            out.append({"role": draw.choice(("user", "assistant")), "content": text_of(draw)})
        if manner.tools and draw.random() < 0.4:
            calls = [
                {
                    "type": "function",
                    "id": f"{draw.randrange(10**9):09}",
                    "function": {
                        "name": draw.choice(("find", "ask_it")),
                        "arguments": {"q": text_of(draw), "n": [1, None]},
                    },
                }
                for _ in range(draw.randint(1, 2))
            ]
            call_turn: Message = {
                "role": "assistant",
                "content": draw.choice(("", text_of(draw))),
                "tool_calls": calls,
            }
            if draw.random() < 0.3:
                call_turn["reasoning_content"] = text_of(draw)
            out.append(call_turn)
            out.append({"role": "tool", "content": text_of(draw), "tool_call_id": calls[0]["id"]})
        out.append({"role": "assistant", "content": text_of(draw)})
        if manner.tools and draw.random() < 0.2:
            out[-1]["reasoning_content"] = text_of(draw)
    return out


def tools_of(draw: random.Random, manner: Manner) -> list[dict[str, Any]] | None:
    """Tool schemas, if the template prints them."""
    if not manner.tools or draw.random() < 0.4:
        return None
    return [{"type": "function", "function": {"name": "find", "description": text_of(draw)}}]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A byte-level BPE that knows the special tokens of all templates, by transformers."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([*PIECES, *PIECES, '<tool_call>\n{"name": "find"', "### Response:\n"], trainer)
    bpe.add_tokens(["<tool_call>", "</tool_call>", "<think>", "</think>"])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>")


@functools.cache
def encoder_of(tokenizer: Any, template: str) -> Encoder:
    """What encodes for this tokenizer, with another template."""
    text = tokenizer.backend_tokenizer.to_str()
    added = tokenizer_head(text).added_tokens
    renderer = Renderer(
        ChatTemplate(template, tokenizer.special_tokens_map, "test"),
        special_tokens=[token.content for token in added if token.special],
        added_tokens=[token.content for token in added if not token.special],
        allow_lost=["assistant", "tools"],
        generation_stops=[tokenizer.eos_token],
    )
    return Encoder(text, make_engine("tokenizers", text), renderer, SpecialTokenAffixes())


def ours(
    encoder: Encoder, rows: list[tuple[list[Message], Any]]
) -> tuple[list[tuple[list[int], list[bool]]], EncodeCounts]:
    """The ids of conversations and which of them mask `assistant` trains. Refused ones have none."""
    examples = []
    for line, (messages, tools) in enumerate(rows):
        prompt_length = len(messages) - (messages[-1]["role"] == "assistant")
        examples.append(Example(line, -1, "", messages[:prompt_length], messages[prompt_length:], None, tools))
    counts = EncodeCounts()
    conversations: list[tuple[list[int], list[bool]]] = [([], [])] * len(rows)
    for batch in encoder.encode(examples, counts):
        structs = batch.column("spans").values
        offsets = view(batch.column("spans").offsets)
        kind = view(structs.field("kind"))
        turn = view(structs.field("turn"))
        supervised, _ = supervised_spans(kind, turn, view(structs.field("weight")), offsets, Mask("assistant"))
        ends = view(structs.field("end"))
        for index, (line, ids) in enumerate(
            zip(batch.column("line").to_pylist(), batch.column("input_ids").to_pylist(), strict=True)
        ):
            document_spans = slice(int(offsets[index]), int(offsets[index + 1]))
            sizes = np.diff(ends[document_spans], prepend=0)
            conversations[line] = (ids, np.repeat(supervised[document_spans], sizes).tolist())
    return conversations, counts


def theirs(tokenizer: Any, template: str, messages: list[Message], tools: Any) -> tuple[list[int], list[bool]]:
    """The same by transformers."""
    encoding = tokenizer.apply_chat_template(
        messages, tools=tools, chat_template=template, return_assistant_tokens_mask=True, return_dict=True
    )
    return encoding["input_ids"], [bool(flag) for flag in encoding["assistant_masks"]]


ROWS = 60
"""Conversations of each template."""


@functools.cache
def answers(tokenizer: Any, name: str) -> list[tuple[list[int], list[bool]]]:
    """What transformers says of the conversations of a template, which is asked once."""
    return [theirs(tokenizer, MANNERS[name].template, *row) for row in written(name, ROWS)]


def written(name: str, count: int) -> list[tuple[list[Message], Any]]:
    """Conversations that the template of a manner takes."""
    draw = random.Random(name)
    manner = MANNERS[name]
    return [(conversation(draw, manner), tools_of(draw, manner)) for _ in range(count)]


@pytest.mark.parametrize("marked", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MANNERS)
def test_what_is_trained_is_what_transformers_says(tokenizer: Any, name: str, marked: bool) -> None:
    """Or the conversation is refused: contents here are full of tags, and some have several thoughts."""
    rows = written(name, ROWS)
    encoder = encoder_of(tokenizer, MANNERS[name].template if marked else bare(MANNERS[name].template))
    conversations, counts = ours(encoder, rows)
    proved = 0
    for (expected_ids, expected), (ids, trained) in zip(answers(tokenizer, name), conversations, strict=True):
        assert ids == expected_ids
        if any(trained):
            proved += 1
            assert trained == expected
    assert proved == len(rows) - counts.total("unproved")
    assert proved >= 0.8 * len(rows)
    assert encoder.renderer is not None
    assert encoder.renderer.mismatches == 0
