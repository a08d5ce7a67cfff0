"""Checks whether an engine gives the reference's tokens, on difficult texts and on the user's own.

The fuzz texts depend only on the tokenizer's added tokens, so verdicts can be reproduced.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np

from ...schemas.errors import TokenizerError
from .engines import ENGINES, Engine, EngineTokens, make_engine, tokenizer_head

MAX_ADDED_TOKENS = 128
"""Maximum number of added tokens to test; some vocabularies have thousands of reserved ones."""

_CODE = [
    "def f(x):\n    return {k: v for k, v in x.items() if k != '__main__'}\n\n\nif f(1):\n\tf({})\n",
    "class A(B, metaclass=C):\n    '''doc'''\n\n    async def g(self, *a: int, **b) -> None:\n        ...\n",
    '#include <stdio.h>\r\nint f() {\r\n\tprintf("%d\\n", a[i]->b++ && !c || ~d);\r\n\treturn 0;\r\n}\r\n',
    "for(int i=0;i<n;++i)for(int j=i+1;j<n;++j)if(a[i]+a[j]==t)return{i,j};",
    'fn main() { let v: Vec<_> = (0..=9).map(|x| x * x).collect::<Vec<u64>>(); println!("{:?}", &v[..]); }',
    '{"key": [1, 2.5e-10, null, true, "\\u00e9\\n"], "nested": {"a": {}}, "url": "https://a.b/c?d=e&f=%20#g"}',
    "<div class='x' data-y=\"z\"><!-- c --><p>&nbsp;&amp;</p></div>\n<script>let a=`${b}`;</script>",
    "SELECT a.*, COUNT(1) FROM t AS a WHERE a.id<>'x''y' GROUP BY 1 HAVING COUNT(1)>=10;--end",
    "# Title\n\n* item\n  * sub\n1. one\n\n```py\nprint('hi')\n```\n| a | b |\n|---|:-:|\n\n> quote\n---\n",
    "\\begin{align}\\frac{\\partial f}{\\partial x}&=\\sum_{i=0}^{n}x_i^2\\\\ \\end{align} $\\alpha$",
    "$ ls -la | grep -v '^d' > /dev/null 2>&1; echo \"$?\" && cd ~/..\nPATH=$PATH:/usr/bin\n",
    "-----Input-----\n\nThe first line contains $t$ ($1 \\le t \\le 10^{4}$).\n\n-----Output-----\n\n3 1 2\n",
    "a=b;c+=d;e-=f;g**=h;i//=j;k>>=l;m!=n;o<=p;q=>r;s::t;u->v;w...x;y??z;@_$%^&*()[]{}<>|\\/~`'\",.;:!?",
]
_SENTENCES = [
    "Ünïcödé façade naïve coöperate Ærøskøbing ŁódźŽižek ỹếừ",
    "e\u0301a\u0300 n\u0303 o\u0308\u0304 u\u031b\u0301 a\u0323\u0302 \u0301start",
    "q\u0307\u0323 q\u0323\u0307",
    "\u212b \u212a \u2126 \ufb01n \u0958 \u0344 \u0340 \u1fef",
    "Z\u0351\u036b\u0343a\u0319\u0332l\u0336g\u0321\u031bo\u0489 te\u0300\u0301\u0302\u0303\u0304\u0305xt",
    "Γειά σου Κόσμε, ὁ ἄνθρωπος ΣΊΣΥΦΟΣ",
    "Съешь ещё этих мягких французских булок, Ґанок, й и\u0306",
    "שָׁלוֹם עוֹלָם \u05d0\u05bc\u05b8",
    "مرحبا بالعالم، كيف حالك؟ لَا إِلٰهَ ٱلْعَرَبِيَّة",
    "नमस्ते दुनिया क्षत्रिय \u0915\u093c \u0958",
    "বাংলা ভাষা ক্ষ \u09c7\u09be",
    "தமிழ் மொழி \u0bc6\u0bbe",
    "తెలుగు ಕನ್ನಡ മലയാളം ਪੰਜਾਬੀ ગુજરાતી ଓଡ଼ିଆ සිංහල",
    "สวัสดีชาวโลก น้ำ",
    "ສະບາຍດີ ខ្មែរ မြန်မာဘာသာ བོད་ཡིག ᠮᠣᠩᠭᠣᠯ",
    "გამარჯობა ႠႡ ᲐᲑ Բարեւ እማርኛ ᏣᎳᎩ ꮳꮃꭹ ᐃᓄᒃᑎᑐᑦ",
    "안녕하세요 세계 \u1112\u1161\u11ab\u1100\u1173\u11af ㄱㄴㄷ",
    "こんにちは、世界。カタカナ ﾊﾝｶｸ ｶﾞ か\u3099 ヴ ー々〆",
    "你好，世界！漢字「測試」《書》…—— 𠮷野家 𪚥 㐀 豈 \uf900 \U0002f800",
    "ＡＢＣ１２３！＠ ½ ² ³ ₄ Ⅷ ⅷ ① ㊙ ㎏ ﷺ ªº",
    "𝕳𝖊𝖑𝖑𝖔 𝒲𝑜𝓇𝓁𝒹 𝟘𝟙𝟚 𝄞𝅘𝅥 𒀀𒁀 𓀀𓂀 𐌰𐌱 𐐷𐑏 🄰🅱",
    "👩‍👩‍👧‍👦 👨🏽‍🚀 🏳️‍🌈 🏴‍☠️ 🇫🇷🇩🇪🇺 1️⃣ #️⃣ ❤️ ❤ ☺︎ 🤷🏿‍♀️ 👍🏻👍",
    "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "😀😃x😄 😁y 🐍🐍🐍 a🐍b 🐍. 🐍\n🐍 \n🐍 (🐍)'🐍'",
    "zero\u200bwidth\u200cjoin\u200dword\u2060\ufeffbom\u00adshy \u200f\u200ertl\u202elro\u202c",
    "\ufffd \ufffe \uffff \ue000 \uf8ff \U000f0000 \U0010ffff",
    "\u0000 \u0001\u0007\u0008\u001b[0m \u007f \u0085 \u009f",
    "“curly” ‘quotes’ ‚low‘ «guillemets» – — ― … ′ ″ ⁄ ‰ € £ ¥ ₿ © ® ™ § ¶ † • °",
    "° ± × ÷ ≠ ≤ ∞ ∑ √ ∫ → ⇒ █ ░ ┌─┐",
    "ᾳ ᾼ ŉ ǅ ǆ ß ẞ ſ K Å İ ı ﬀ ŀ Ǳ",
    "don\u2019t I\u2019m ‘tis rock ’n’ roll",
]
_CONTRACTIONS = "'s 't 're 've 'm 'll 'd 'S 'T 'RE 'Ve 'LL 'D '\u017f 'x ''s \u2019s".split()  # noqa: SIM905
_SPACES = (
    "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f\x20\x85\xa0\u1680\u2000\u2003\u2007\u2009\u200a\u200b"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)
_NUMBERS = """
1 12 123 1234 12345 123456 1234567 12345678901234567890 3.14159 1,234,567.89 1e-9 0x1F 0b10 1_000 -5 +7
2024-01-31 23:59:59 192.168.0.1 10% $5 #1 1st v2.0 a1b22c333d4444 ٣٤٥ ४५६ １２３ ²³ Ⅻ ½ 1²3 𝟏𝟐
""".split()  # noqa: SIM905
_LOOK_ALIKES = """
<s> </s> <pad> <unk> <mask> <bos> <eos> <0x0A> <0x41> ▁ ▁▁a Ġ Ċ ĠA <|endoftext|> <|im_start|> <|im_end|>
<|im_start| <|im_end|>> <<|im_end|> <|im_|im_end|> <|IM_END|> [INST] [/INST] <<SYS>> [CLS] [SEP] [MASK] [UNK]
<think> </think> <tool_call> <｜User｜> <|eot_id|> <start_of_turn> <end_of_turn> <|> <||> || <> </>
""".split()  # noqa: SIM905


@dataclass(frozen=True, slots=True)
class TokenDifference:
    """The first place at which an engine and the reference differ on one text."""

    index: int
    """Index of the text."""
    text: str
    token: int
    """Index of the token."""
    got: tuple[int, ...]
    """The engine's tokens from that token on, at most eight."""
    expected: tuple[int, ...]
    """The reference's tokens from that token on, at most eight."""

    def sentence(self) -> str:
        """The difference in words, with the text shortened."""
        shown = self.text if len(self.text) <= 80 else self.text[:77] + "..."
        return f"on {shown!r}, from token {self.token}: {list(self.got)} instead of {list(self.expected)}"


@dataclass(frozen=True, slots=True)
class FuzzVerdict:
    """An engine's result on the fuzz texts. It depends on the tokenizer and on versions, not on any data."""

    texts: int
    differing: int
    """Texts on which the engine and the reference give different tokens."""
    first: str
    """The first difference as a sentence, or ""."""


CheckFuzz = Callable[[Engine, Engine, Sequence[str]], FuzzVerdict]
"""Takes `(engine, reference, added_tokens)`, as `check_fuzz` does."""

FUZZ_SET = "ea987d0dbfe3e464"
"""A hash of the texts of `fuzz_texts`, checked by a test. Change it when the texts change."""


@dataclass(frozen=True, slots=True, eq=False)
class Resolution:
    """Which engine encodes, and how it was chosen."""

    name: str
    version: str
    tried: tuple[tuple[str, str], ...]
    """(engine, verdict in one sentence), in the order tried; the last one was chosen."""
    engine: Engine


def fuzz_texts(added_tokens: Sequence[str]) -> list[str]:
    """About 4,000 short texts, below 300 KB, on which tokenizers are known to disagree.

    Code, scripts of all planes, combining characters, emoji sequences, every white space in runs, numbers,
    contractions, look-alikes of special tokens, the tokenizer's own added tokens in context, very long
    words, remains of other encodings, and mixtures of all these. Deterministic for the same `added_tokens`.
    """
    draw = _Draw()
    added = _representatives(added_tokens)
    texts = ["", " ", "\n", "a", *_CODE, *_SENTENCES, *(chr(c) for c in range(256))]
    texts += _code_points()
    texts += _white_space()
    texts += [f"{a}{c}{b}" for a, c, b in product(("", "it", "IT", " x", "1", "é"), _CONTRACTIONS, ("", "s", " y"))]
    texts += [f"{a}{n}{b}" for a, n, b in product(("", " ", "x"), _NUMBERS, ("", "y", " 1"))]
    texts += [f"{a}{s}{b}" for s in _LOOK_ALIKES for a, b in (("", ""), ("a", "b"), (" ", " "), ("\n", "\n"))]
    texts += [context for token in added for context in _in_context(token)]
    texts += [a + b for a, b in pairwise(added)]
    texts += _long_words(draw)
    texts += _garbage(draw)
    texts += _mixtures(draw, added)
    return texts


def differences(engine: Engine, reference: Engine, texts: Sequence[str]) -> list[TokenDifference]:
    """Return the first difference of each text on which the two differ; [] if they agree on all."""
    return _differences(engine.encode(texts), reference.encode(texts), texts)


def check_fuzz(engine: Engine, reference: Engine, added_tokens: Sequence[str]) -> FuzzVerdict:
    """Compare an engine with the reference on the fuzz texts of a tokenizer with these added tokens."""
    return check_texts(engine, reference, fuzz_texts(added_tokens))


def check_texts(engine: Engine, reference: Engine, texts: Sequence[str]) -> FuzzVerdict:
    """Compare an engine with the reference on some texts."""
    found = differences(engine, reference, texts)
    return FuzzVerdict(len(texts), len(found), found[0].sentence() if found else "")


def resolve_engine(
    requested: str,
    tokenizer_json: str,
    samples: Callable[[], Sequence[str]],
    distrusted: Sequence[str] = (),
    check: CheckFuzz = check_fuzz,
    make: Callable[[str, str], Engine] = make_engine,
) -> Resolution:
    """Choose an engine that gives the reference's tokens on the fuzz texts and on samples.

    Args:
        requested: the name of an engine, or `auto` for the first that passes; the reference is tried last.
        tokenizer_json: content of a tokenizer.json.
        samples: returns the first texts of the user's data, as they will be encoded. Called only after the fuzz texts
            were compared, so that others may make the samples meanwhile.
        distrusted: engines that `auto` skips, because they were found wrong before.
        check: compares an engine with the reference on the fuzz texts, or looks up the verdict. The samples are always
            compared.
        make: makes an engine that is not the reference; it may run in another process.

    Raises:
        TokenizerError: the requested engine is missing, refuses the tokenizer or gives other tokens; or the reference
            itself cannot load the tokenizer.
    """
    reference = make_engine("tokenizers", tokenizer_json)
    if requested == "tokenizers":
        return Resolution(reference.name, reference.version, ((reference.name, "asked for"),), reference)
    added = [token.content for token in tokenizer_head(tokenizer_json).added_tokens]
    expected: EngineTokens | None = None
    tried: list[tuple[str, str]] = []
    for name in ENGINES if requested == "auto" else (requested,):
        if name == "tokenizers":
            tried.append((name, "the reference itself"))
            break
        if requested == "auto" and name in distrusted:
            tried.append((name, "it gave other tokens than tokenizers in an earlier run"))
            continue
        try:
            engine = make(name, tokenizer_json)
        except TokenizerError as error:
            if requested != "auto":
                raise
            tried.append((name, str(error)))
            continue
        on_fuzz = check(engine, reference, added)
        texts = samples()
        total = on_fuzz.texts + len(texts)
        expected = expected if expected is not None else reference.encode(texts)
        on_samples = _differences(engine.encode(texts), expected, texts)
        differing = on_fuzz.differing + len(on_samples)
        if not differing:
            tried.append((name, f"the same tokens as tokenizers on {total:,} texts"))
            return Resolution(name, engine.version, tuple(tried), engine)
        first = on_fuzz.first or on_samples[0].sentence()
        verdict = f"differs from tokenizers on {differing:,} of {total:,} texts, first {first}"
        if requested != "auto":
            raise TokenizerError(f"the tokenizer engine {name} {verdict}; use tokenizer.engine=auto")
        tried.append((name, verdict))
    return Resolution(reference.name, reference.version, tuple(tried), reference)


class _Draw:
    """A random generator (Knuth's MMIX constants) that draws the same texts on every Python version."""

    def __init__(self) -> None:
        self._state = 20_260_101

    def below(self, n: int) -> int:
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return (self._state >> 33) % n

    def of(self, choices: Sequence[str]) -> str:
        return choices[self.below(len(choices))]


def _differences(got: EngineTokens, expected: EngineTokens, texts: Sequence[str]) -> list[TokenDifference]:
    if np.array_equal(got.offsets, expected.offsets) and np.array_equal(got.ids, expected.ids):
        return []
    found = []
    for i, text in enumerate(texts):
        a = got.ids[got.offsets[i] : got.offsets[i + 1]].tolist()
        b = expected.ids[expected.offsets[i] : expected.offsets[i + 1]].tolist()
        if a != b:
            at = next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
            found.append(TokenDifference(i, text, at, tuple(a[at : at + 8]), tuple(b[at : at + 8])))
    return found


def _representatives(added_tokens: Sequence[str]) -> list[str]:
    unique = [token for token in dict.fromkeys(added_tokens) if token]
    if len(unique) <= MAX_ADDED_TOKENS:
        return unique
    half = MAX_ADDED_TOKENS // 2
    rest = unique[half:]
    return unique[:half] + [rest[i * len(rest) // half] for i in range(half)]


def _in_context(token: str) -> Iterator[str]:
    yield from (
        token,
        f"a{token}b",
        f" {token} ",
        f"  {token}  x",
        f"\n{token}\n",
        f"{token}{token}",
        f"{token}user\n",
    )
    yield from (f"é{token}é", f"1{token}2", f"!{token}!", f"{token[:-1]} {token[1:]}", token[:-1] + token)
    yield from (token.upper(), token.lower(), f"{token[: len(token) // 2]}\u200b{token[len(token) // 2 :]}")


def _code_points() -> Iterator[str]:
    """Yield texts with a sample of characters of all planes, a dozen per text: after a letter, a space, a digit, a full
    stop.
    """
    dense = range(0xA0, 0x3400, 3)
    sparse = [*range(0x3400, 0xD800, 61), *range(0xE000, 0xF900, 499), *range(0xF900, 0x10000, 3)]
    planes = [*range(0x10000, 0x1FC00, 13), *range(0x20000, 0x32000, 1031), *range(0xE0000, 0x110000, 4999)]
    points = [*dense, *sparse, *planes]
    for start in range(0, len(points), 12):
        yield "".join(f"{'a 1.'[i % 4]}{chr(c)}" for i, c in enumerate(points[start : start + 12], start))


def _white_space() -> Iterator[str]:
    for space in _SPACES:
        yield from (f"a{space * n}b" for n in (1, 2, 3))
        yield from (
            f"{space} x",
            f" {space}x",
            f"x{space}",
            f"{space}{space}1",
            f"{space}.\n",
            f"a\n{space}\nb",
        )
    for n in (*range(1, 18), 31, 32, 33, 63, 64, 65, 80, 127, 128, 129, 255, 256, 257):
        yield from (
            f"x{' ' * n}y",
            f"\n{' ' * n}return",
            " " * n,
            "\n" * n + "x",
            "\t" * n + "1",
            f"x{' ' * n}",
        )
    yield from ("".join(run) for run in product(" \n\t\r", repeat=4))
    yield from (f"x{a}{b}{c}y" for a, b, c in product((" ", "\n", "\r\n", "\t", "\xa0", "\u3000"), repeat=3))


def _long_words(draw: _Draw) -> Iterator[str]:
    yield from (
        "a" * 1000,
        "ab" * 400,
        "=" * 700,
        "-" * 257,
        "." * 300,
        "_" * 120,
        "/" * 99,
        "9" * 300,
        "é" * 200,
    )
    yield from (
        "的" * 200,
        "🐍" * 60,
        "\u0301" * 100,
        "A" * 130 + "b" * 130,
        "!?" * 90,
        "' " * 60,
        "\\n" * 80,
    )
    yield from ("".join(chr(0x4E00 + draw.below(0x5000)) for _ in range(150)) for _ in range(4))
    base64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    yield from ("".join(draw.of(base64) for _ in range(300)) for _ in range(6))
    yield from ("".join(draw.of("abcdefghijklmnopqrstuvwxyz") for _ in range(400)) for _ in range(4))


def _garbage(draw: _Draw) -> Iterator[str]:
    for codec in ("latin-1", "cp437", "utf-8"):
        for _ in range(15):
            yield bytes(draw.below(256) for _ in range(60)).decode(codec, "replace")
    for sentence in _SENTENCES[:12]:
        yield sentence.encode().decode("cp437")


def _mixtures(draw: _Draw, added: Sequence[str]) -> Iterator[str]:
    words = [word for text in (*_CODE, *_SENTENCES) for word in text.split(" ")]
    glue = [
        "",
        "",
        " ",
        " ",
        "  ",
        "\n",
        "\n\n",
        "\t",
        "\r\n",
        " \n",
        "\n ",
        "'",
        "_",
        "-",
        ".",
        "\xa0",
        "\u200d",
        "\u0301",
    ]
    kinds: list[Sequence[str]] = [
        words,
        words,
        words,
        _NUMBERS,
        _CONTRACTIONS,
        _LOOK_ALIKES,
        list(_SPACES),
        added or words,
    ]
    for _ in range(700):
        yield "".join(draw.of(kinds[draw.below(len(kinds))]) + draw.of(glue) for _ in range(3 + draw.below(14)))
