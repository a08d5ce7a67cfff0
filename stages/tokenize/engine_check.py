"""Compares an engine with the reference, on texts on which tokenizers are known to disagree.

The texts depend only on the tokenizer's added tokens.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import NamedTuple

from .engines import Engine

MAX_ADDED_TOKENS = 128
"""Maximum number of added tokens to test; some vocabularies have thousands of reserved ones."""
_BATCH = 256
"""How many texts the reference encodes at a time, because it needs hundreds of times their memory."""
_SHOWN = 80
"""Characters of a text that a message shows."""

_PASSAGES = [
    "def f(x):\n    return {k: v for k, v in x.items() if k != '__main__'}\n\n\nif f(1):\n\tf({})\n",
    '#include <stdio.h>\r\nint f() {\r\n\tprintf("%d\\n", a[i]->b++ && !c || ~d);\r\n\treturn 0;\r\n}\r\n',
    '{"key": [1, 2.5e-10, null, true, "\\u00e9\\n"], "nested": {"a": {}}, "url": "https://a.b/c?d=e&f=%20#g"}',
    "# Title\n\n* item\n  * sub\n1. one\n\n```py\nprint('hi')\n```\n| a | b |\n|---|:-:|\n\n> quote\n---\n",
    "a=b;c+=d;e-=f;g**=h;i//=j;k>>=l;m!=n;o<=p;q=>r;s::t;u->v;w...x;y??z;@_$%^&*()[]{}<>|\\/~`'\",.;:!?",
    "e\u0301a\u0300 n\u0303 o\u0308\u0304 u\u031b\u0301 a\u0323\u0302 \u0301start q\u0307\u0323 \u212b \ufb01n ß İ",
    "Съешь ещё этих мягких булок, שָׁלוֹם עוֹלָם مرحبا بالعالم नमस्ते क्षत्रिय \u0915\u093c \u09c7\u09be สวัสดี น้ำ",
    "안녕하세요 세계 \u1112\u1161\u11ab ㄱㄴㄷ こんにちは、世界。ﾊﾝｶｸ か\u3099 你好，世界！漢字「測試」𠮷野 ＡＢ１２！",
    "👩‍👩‍👧‍👦 👨🏽‍🚀 🏳️‍🌈 🇫🇷🇩🇪 1️⃣ ❤️ ☺︎ 😀x😄 a🐍b 🐍. 🐍\n🐍 \n🐍 (🐍)'🐍' ½ ² Ⅷ ① 𝕳𝖊 𝟘𝟙 𝄞",
    "zero\u200bwidth\u200cjoin\u200dword\u2060\ufeffbom\u00adshy \u200f\u200ertl\u202elro \ufffd \uffff \ue000 \u0000",
    "“curly” ‘quotes’ «guillemets» – — … ″ ‰ € £ © ™ § † • ° ± × ≠ ∞ √ → ⇒ █ ┌─┐",
]
"""Code and writing of many kinds."""
_PARTS = """
's 't 're 've 'm 'll 'd 'S 'RE 'Ve 'LL '\u017f 'x ''s \u2019s 1 12 123 1234567 12345678901234567890 3.14159 1,234,567.89
1e-9 0x1F 1_000 -5 2024-01-31 23:59:59 10% $5 #1 1st v2.0 a1b22c333d4444 ٣٤٥ ४५६ １２３ ²³ Ⅻ ½ 1²3 𝟏𝟐 <s> </s> <pad>
<0x0A> ▁ ▁▁a Ġ Ċ ĠA <|endoftext|> <|im_start|> <|im_start| <|im_end|>> <<|im_end|> <|im_|im_end|> <|IM_END|> [INST]
<<SYS>> [MASK] <think> </think> <tool_call> <｜User｜> <start_of_turn> <|> <||> || <> </> it IT é
""".split()  # noqa: SIM905
"""Contractions, numbers, and look-alikes of special tokens."""
_SPACES = (
    "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f\x20\x85\xa0\u1680\u2000\u2003\u2007\u2009\u200a\u200b"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)
_GLUE = ["", "", "", *" \n\t'_-.\xa0\u200d\u0301", "  ", "\n\n", "\r\n", " \n", "\n "]


class EngineSample(NamedTuple):
    """A text and the engine's tokens, for comparison with the reference."""

    text: str
    ids: list[int]


@dataclass(slots=True)
class SampledTexts:
    """Texts that are encoded, with their tokens, for a comparison later. Filled while an encoder works."""

    every: bool = False
    """Whether all texts are taken; else some, chosen by what they contain."""
    samples: list[EngineSample] = field(default_factory=list)


def samples_of(engine: Engine, texts: Sequence[str]) -> list[EngineSample]:
    """Encode texts for a comparison."""
    ids = engine.encode(texts).each()
    return [EngineSample(text, own.tolist()) for text, own in zip(texts, ids, strict=True)]


def difference(samples: Sequence[EngineSample], reference: Engine) -> str:
    """The first text of which an engine made other tokens than the reference, in words; "" if there is none."""
    for start in range(0, len(samples), _BATCH):
        batch = samples[start : start + _BATCH]
        for (text, a), (_, b) in zip(batch, samples_of(reference, [one.text for one in batch]), strict=True):
            if a != b:
                at = next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
                shown = text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
                return f"on {shown!r}, from token {at}: {a[at : at + 8]} instead of {b[at : at + 8]}"
    return ""


def fuzz_texts(added_tokens: Sequence[str]) -> list[str]:
    """About 3,000 short texts, below 300 KB: code, characters of all planes, every white space in runs, the tokenizer's
    own added tokens in context, long words, and mixtures of these with numbers, contractions and look-alikes of special
    tokens. The same for the same `added_tokens`.
    """
    unique = [token for token in dict.fromkeys(added_tokens) if token]
    added = unique[:: -(-len(unique) // MAX_ADDED_TOKENS) or 1]
    texts = ["", *_PASSAGES, *(chr(c) for c in range(256)), *map("".join, product(" \n\t\r", repeat=4))]
    dense = [*range(0xA0, 0x3400, 3), *range(0xF900, 0x10000, 3), *range(0x10000, 0x1FC00, 13)]
    points = [*dense, *range(0x3400, 0xD800, 61), *range(0xE000, 0xF900, 499), *range(0x20000, 0x110000, 4001)]
    for start in range(0, len(points), 12):  # each after a letter, a space, a digit or a full stop
        texts.append("".join(f"{'a 1.'[i % 4]}{chr(c)}" for i, c in enumerate(points[start : start + 12], start)))
    for space in _SPACES:
        texts += [f"a{space * n}b" for n in (1, 2, 3)]
        texts += [f"{space} x", f" {space}x", f"x{space}", f"{space}{space}1", f"{space}.\n", f"a\n{space}\nb"]
    for n in (*range(1, 18), 31, 32, 33, 63, 64, 65, 80, 127, 128, 129, 255, 256, 257):
        run = " " * n
        texts += [f"x{run}y", f"\n{run}return", run, "\n" * n + "x", "\t" * n + "1", f"x{run}"]
    for token in added:
        texts += [token, token * 2, f"a{token}b", f"  {token}  x", f"\n{token}\n", f"é{token}é", f"1{token}2"]
        texts += [f"{token[:-1]} {token[1:]}", token[:-1] + token, token.upper(), f"{token[:1]}\u200b{token[1:]}"]
    texts += [a + b for a, b in pairwise(added)]
    texts += [c * n for c, n in (("a", 1000), ("ab", 400), ("=", 700), ("9", 300), ("é", 200), ("的", 200), ("🐍", 60))]
    draw = random.Random(20_260_101)
    words = [word for text in _PASSAGES for word in text.split(" ")]
    kinds = [words, words, _PARTS, _PARTS, list(_SPACES), added or words]
    for _ in range(1200):
        texts.append("".join(draw.choice(draw.choice(kinds)) + draw.choice(_GLUE) for _ in range(draw.randint(2, 12))))
    return texts
