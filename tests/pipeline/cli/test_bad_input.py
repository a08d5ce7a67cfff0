"""Bad inputs and bad places: a clear message, the right exit code, and nothing that looks finished but is not."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packtrain.pipeline.dataset.output_folder import read_manifest
from packtrain.pipeline.dataset.verify import verify
from packtrain.pipeline.store.local import LocalStore
from packtrain.schemas.manifest import Manifest

from tests.support import warm

PROGRAM = Path(sys.executable).parent / "packtrain"
TEXT = b'{"text": "hello world"}\n'
CHAT = b'{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}\n'


class Outcome(Protocol):
    """What a command said, and its exit code."""

    @property
    def code(self) -> int: ...
    @property
    def out(self) -> str: ...
    @property
    def err(self) -> str: ...


Command = Callable[..., Outcome]
Popen = subprocess.Popen[str]


class Packer:
    """Packs one file of bytes by the command line: `pack(b"...", "--max-length", 7)`."""

    def __init__(self, command: Command, folder: Path, tokenizer: Path, cache: Path) -> None:
        self.command = command
        self.tokenizer = tokenizer
        self.cache = cache
        self.folder = folder
        self.file = folder / "in.jsonl"
        self.out = folder / "out"

    def __call__(self, data: bytes | None, *more: object, format: str = "text") -> Outcome:
        if data is not None:
            self.file.write_bytes(data)
        return self.command(*self.arguments(*more, format=format))

    def arguments(self, *more: object, format: str = "text") -> list[object]:
        """The command line."""
        return [
            "run", "--format", format, "--input", self.file, "--tokenizer", self.tokenizer, "--out", self.out,
            "--workers", 1, "--no-report", "--set", f"cache={self.cache}", "--set", "tokenizer.engine=tokenizers",
            *more,
        ]  # fmt: skip

    def refused(self, data: bytes | None, *more: object, format: str = "text", code: int = 2) -> str:
        """The message of a command that must fail, and leave nothing that looks finished."""
        before = read_manifest(LocalStore(self.out)) if self.out.is_dir() else None
        done = self(data, *more, format=format)
        assert done.code == code, done
        assert done.err.startswith("packtrain: ")
        assert "Traceback" not in done.err
        if before is None:
            assert not (self.out / "manifest.json").exists()
        else:
            assert read_manifest(LocalStore(self.out)) == before
        return done.err

    def packed(self, data: bytes | None, *more: object, format: str = "text") -> Manifest:
        """The manifest of a command that must succeed, and whose dataset must be sound."""
        done = self(data, *more, format=format)
        assert (done.code, done.err) == (0, ""), done
        manifest = read_manifest(LocalStore(self.out))
        assert manifest is not None
        assert self.command("verify", self.out, "--deep").code == 0
        return manifest

    def rejects(self) -> list[tuple[int, str, str]]:
        """(line, reason, detail) of rejects.jsonl."""
        lines = (self.out / "rejects.jsonl").read_text(encoding="utf-8").splitlines()
        return [(row["line"], row["reason"], row["detail"]) for row in map(json.loads, lines)]


@pytest.fixture
def pack(packtrain: Command, tmp_path: Path, tiny_tokenizer: Path, new_cache: Callable[[Path], Path]) -> Packer:
    return Packer(packtrain, tmp_path, tiny_tokenizer, new_cache(tiny_tokenizer))


# Rows


BAD_LINES = [
    (b'{"text": "h\xff"}\n', "invalid_utf8", "byte 11 of the line: invalid start byte"),
    (b'{"text": 5}\n', "wrong_type", "`text`: expected `str`, got `int`"),
    (b'{"text": null}\n', "wrong_type", "`text`: expected `str`, got `null`"),
    (b'{"body": "x"}\n', "missing_key", "the row has no `text`"),
    (b'["text"]\n', "not_an_object", "expected `object`, got `array`"),
    (b"5\n", "not_an_object", "expected `object`, got `int`"),
    (b"text\n", "invalid_json", "malformed"),
    (b'{"text": "\\ud83d"}\n', "invalid_json", "half of a surrogate pair"),
    (b"\x00\n", "invalid_json", "malformed"),
    (b'{"text": "hel', "invalid_json", "the line ends in the middle of its JSON"),  # the file ends here
]


def test_bad_lines_are_rejected_with_their_places_and_the_rest_is_packed(pack: Packer) -> None:
    manifest = pack.packed(b"".join(TEXT * 5 + line for line, _, _ in BAD_LINES))
    rejects = pack.rejects()
    assert [(place, why) for place, why, _ in rejects] == [
        (6 * number, reason) for number, (_, reason, _) in enumerate(BAD_LINES, 1)
    ]
    for (_, _, said), (_, _, detail) in zip(rejects, BAD_LINES, strict=True):
        assert detail in said
    ledger = manifest.ledger.sources["text"]
    assert (ledger.rows_read, ledger.rows_used) == (6 * len(BAD_LINES), 5 * len(BAD_LINES))
    assert ledger.rows_rejected == Counter(reason for _, reason, _ in BAD_LINES)


def test_the_summary_points_at_the_rejects(pack: Packer) -> None:
    done = pack(TEXT + b"{\n")
    assert f"1 row or example was rejected; see {pack.out / 'rejects.jsonl'}" in done.out


def test_a_summary_of_mostly_rejected_rows_says_why(pack: Packer) -> None:
    said = " ".join(pack(TEXT + b"{\n" * 3 + b"[]\n").out.split())
    assert "4 rows or examples were rejected of 5 rows. Most often invalid_json: The line is not JSON;" in said
    assert f"All: see {pack.out / 'rejects.jsonl'}" in said


BAD_CHATS = [
    (b'{"messages": [{"role": "user", "content": 5}]}', "wrong_type", "`messages[0].content` must be a string"),
    (b'{"messages": [{"role": 7, "content": "x"}]}', "wrong_type", "`messages[0].role`"),
    (b'{"messages": [5]}', "wrong_type", "`messages[0]`: expected `object`, got `int`"),
    (b'{"messages": "hello"}', "wrong_type", "`messages` is not a JSON list of objects"),
    (b'{"messages": []}', "empty", "`messages` has no messages"),
    (b'{"messages": [{"role": "user", "content": [{"type": "image"}]}]}', "not_text", "image"),
]


def test_bad_conversations(pack: Packer) -> None:
    pack.packed(b"".join(CHAT + line + b"\n" for line, _, _ in BAD_CHATS), format="messages")
    rejects = pack.rejects()
    assert [(place, why) for place, why, _ in rejects] == [
        (2 * number, reason) for number, (_, reason, _) in enumerate(BAD_CHATS, 1)
    ]
    for (_, _, said), (_, _, detail) in zip(rejects, BAD_CHATS, strict=True):
        assert detail in said


def test_solutions_that_are_not_json(pack: Packer) -> None:
    good = b'{"question": "q", "solutions": "[\\"print(1)\\"]"}\n'
    bad = [b'"not json"', b'"{}"', b'"[1]"', b"5"]
    pack.packed(good + b"".join(b'{"question": "q", "solutions": ' + one + b"}\n" for one in bad), format="apps")
    rejects = pack.rejects()
    assert [(line, reason) for line, reason, _ in rejects] == [(2 + i, "bad_solutions") for i in range(len(bad))]
    assert all("solutions" in detail for _, _, detail in rejects)


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


@pytest.mark.parametrize("format", ["messages", "auto"])
def test_rows_that_nest_too_deeply(pack: Packer, format: str) -> None:
    deep = [
        f', "tools": [{{"a": {nested(900)}}}]',
        ', "tools": ' + json.dumps(f'[{{"a": {nested(900)}}}]'),
        f', "other": {nested(900)}',
        f', "other": {nested(50_000)}',
    ]
    lines = [CHAT.removesuffix(b"}\n") + more.encode() + b"}\n" for more in deep]
    pack.packed(CHAT * 3 + b"".join(line + CHAT for line in lines), format=format)
    assert [(place, why) for place, why, _ in pack.rejects()] == [(place, "too_deep") for place in (4, 6, 8, 10)]
    shutil.rmtree(pack.out)
    assert "nests more than 100 lists and objects" in pack.refused(b"".join(lines), format=format)


def test_the_deepest_row_is_packed(pack: Packer) -> None:
    """Nesting below the limit passes every reader: templates, filters, one example per turn."""
    tools = f'[{{"type": "function", "function": {{"name": "f", "parameters": {nested(95)}}}}}]'
    line = CHAT.removesuffix(b"}\n") + b', "tools": ' + tools.encode() + b"}\n"
    template = (
        "{{ tools | tojson }}{% for message in messages %}<|im_start|>{{ message.role }}\n"
        "{{ message.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    (pack.folder / "tools.jinja").write_text(template)
    more = [
        f"tokenizer.chat_template={pack.folder / 'tools.jinja'}",
        "sources.0.where=LENGTH(tools) > 90",
        "sources.0.expand=per_turn",
    ]
    pack.packed(line, *(word for one in more for word in ("--set", one)), format="messages")
    assert pack.rejects() == []


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("format", ["text", "auto"])
def test_two_columns_of_one_name(pack: Packer, suffix: str, format: str) -> None:
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    file = pack.folder / f"twice.{suffix}"
    if suffix == "parquet":
        pq.write_table(table, file)
    else:
        with pa.ipc.new_file(str(file), table.schema) as writer:
            writer.write_table(table)
    message = pack.refused(None, "--set", f"sources.0.path={file}", format=format)
    assert f"{file}: two columns are called 'text'; write it again with unique names" in message


SAME = [
    ("byte order mark", b"\xef\xbb\xbf" + TEXT * 3),
    ("line ends of Windows", TEXT.replace(b"\n", b"\r\n") * 3),
    ("no line end at the end", (TEXT * 3).rstrip()),
    ("blank lines", b"\n" + TEXT + b"  \n\r\n" + TEXT * 2 + b"\n\n"),
    ("spaces", b" " + TEXT.replace(b": ", b" :\t") * 3),
]


def test_how_lines_are_written_is_of_no_matter(pack: Packer, read_rows: Callable[..., list[dict[str, Any]]]) -> None:
    pack.packed(TEXT * 3)
    rows = read_rows(pack.out)
    for name, data in SAME:
        shutil.rmtree(pack.out)
        manifest = pack.packed(data)
        assert pack.rejects() == [], name
        assert manifest.ledger.sources["text"].rows_used == 3, name
        assert rows == read_rows(pack.out), name


def test_pure_garbage(pack: Packer) -> None:
    noise = random.Random(7).randbytes(100_000)
    message = pack.refused(noise)
    lines = len(noise.split(b"\n"))
    assert re.search(rf"nothing is left to pack: of {lines} rows, 0 gave examples \(invalid_utf8 \d+", message)
    assert len(pack.rejects()) + noise.split(b"\n").count(b"") == lines


def test_nothing_is_left(pack: Packer) -> None:
    message = pack.refused(b'{"text": ""}\n' * 3 + b"{\n")
    assert "of 4 rows, 0 gave examples (empty 3, invalid_json 1)" in message
    assert "rejects.jsonl" in message
    assert "The first: in.jsonl, line 1: empty: `text` is empty." in message
    assert [reason for _, reason, _ in pack.rejects()] == ["empty"] * 3 + ["invalid_json"]
    pack.packed(TEXT)  # in the same folder


def test_wrong_columns_are_refused_before_the_tokenizer_is_loaded(pack: Packer) -> None:
    real, pack.tokenizer = pack.tokenizer, pack.folder / "no tokenizer"
    pack.tokenizer.mkdir()
    message = pack.refused(b"{\n" + b'{"body": "x"}\n' * 3)
    assert "in.jsonl, line 2: missing_key: the row has no `text`; it has `body`. None of the 3 rows looked" in message
    assert message.endswith("say which: --set sources.0.keys.text=COLUMN\n")
    assert not (pack.out / "rejects.jsonl").exists()
    message = pack.refused(CHAT * 3)
    assert "None of the 3 rows looked at fits format text. The rows of source text fit format messages" in message
    pack.tokenizer = real
    pack.packed(b'{"body": "x"}\n' * 3, "--set", "sources.0.keys.text=body")  # as the message says


def test_rows_that_fit_after_many_that_do_not_are_packed(pack: Packer) -> None:
    manifest = pack.packed(b'{"body": "x"}\n' * 1000 + TEXT)
    assert manifest.ledger.sources["text"].rows_rejected == {"missing_key": 1000}


def test_a_file_is_told_how_to_set_a_key_in_its_own_words(pack: Packer) -> None:
    pack.file.write_bytes(b'{"body": "x"}\n')
    config = pack.folder / "run.yaml"
    config.write_text(
        f"out: {pack.out}\ntokenizer: {{path: {pack.tokenizer}}}\n"
        "sources: [{name: a, format: text, path: in.jsonl}]\n"
    )
    done = pack.command("run", config)
    assert done.code == 2
    assert done.err.endswith("say which: keys: {text: COLUMN}\n")


def test_all_that_is_missing_is_said_at_once(pack: Packer) -> None:
    pack.tokenizer = pack.folder / "nowhere"
    message = pack.refused(None)
    assert "there is no file" in message
    assert "tokenizer.path: the folder" in message
    done = pack.command("prep", "--format", "text")
    assert done.code == 2
    assert "--input as well; and --output" in done.err


def test_nothing_but_blank_lines(pack: Packer) -> None:
    message = pack.refused(b"\n \n\n")
    assert "nothing is left to pack: of 3 rows, 0 gave examples. All are blank: remove the file, or fill it" in message


def long_row(megabytes: int) -> bytes:
    return b'{"text": "' + b"so it goes " * -(-megabytes * 1_000_000 // 11) + b'"}\n'


# Says at the end how much memory it had at most. (ru_maxrss would count the process that started it.)
MEASURED = """
import sys
from pathlib import Path
from packtrain.pipeline.cli.main import main
note = Path(sys.argv.pop(1))
try:
    main()
finally:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    note.write_text(line.split()[1])
"""


@pytest.mark.slow
def test_a_row_of_fifty_megabytes_is_rejected_in_bounded_memory(pack: Packer) -> None:
    peaks = []
    for name, data in (("small", TEXT * 3), ("large", TEXT + long_row(50) + TEXT)):
        pack.file.write_bytes(data)
        pack.out = pack.folder / name
        words = pack.arguments()
        subprocess.run([sys.executable, "-c", MEASURED, pack.folder / "peak", *map(str, words)], check=True)
        peaks.append(int((pack.folder / "peak").read_text()))
        assert pack.command("verify", pack.out, "--deep").code == 0
    detail = "the line has 50,000,018 bytes, more than max_row_bytes (16,777,216); raise it to use the row"
    assert pack.rejects() == [(2, "row_too_long", detail)]
    assert peaks[1] < peaks[0] + 32 * 1024, "KiB"


@pytest.mark.slow
def test_a_row_beyond_the_default_limit_is_packed_where_it_may_be(pack: Packer) -> None:
    manifest = pack.packed(
        TEXT + long_row(17), "--set", "sources.0.max_row_bytes=64MiB", "--set", "pack.strategy=bfd_split"
    )
    assert manifest.ledger.sources["text"].rows_used == 2
    assert manifest.ledger.sources["text"].tokens_packed > 3_400_000


# Files


def test_a_file_that_is_missing(pack: Packer) -> None:
    message = pack.refused(None)
    assert f"sources.text.path: there is no file {pack.file}; check the spelling" in message


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf"])
def test_a_file_that_is_empty(pack: Packer, data: bytes) -> None:
    assert f"{pack.file} is empty; remove it from sources.text.path, or fill it" in pack.refused(data)


def test_a_folder_as_input(pack: Packer) -> None:
    pack.file.mkdir()
    assert f"{pack.file} is a folder without data files" in pack.refused(None)
    (pack.file / "in.jsonl").write_bytes(TEXT)
    pack.packed(None)


@pytest.mark.parametrize("name", ["in.jsonl", "deep/../in.jsonl", "link.jsonl"])
def test_the_same_file_twice(pack: Packer, name: str) -> None:
    (pack.folder / "deep").mkdir()
    (pack.folder / "link.jsonl").symlink_to("in.jsonl")
    message = pack.refused(TEXT, "--input", pack.folder / name)
    assert f"{pack.folder / name} is listed twice" in message
    assert "its rows would count twice" in message


def test_a_name_that_is_not_utf8(pack: Packer) -> None:
    assert "is not UTF-8" in pack.refused(TEXT, "--input", os.fsdecode(b"\xff.jsonl"))


def test_a_finished_run_whose_input_is_gone(pack: Packer) -> None:
    pack.packed(TEXT)
    pack.file.unlink()
    assert "there is no file" in pack.refused(None)
    assert pack.command("verify", pack.out, "--deep").code == 0


# Tokenizers and templates


def with_template(template: str) -> tuple[object, ...]:
    return ("--set", f"tokenizer.chat_template={template}")


BAD_TEMPLATES = [
    ("{% for x %}", "does not compile: expected token 'in'"),
    ("{{ nosuch() }", "does not compile"),
    ("{{ 1 | nosuch }}", "does not compile: No filter named 'nosuch'"),
    ("{{ strftime_now('%Y') }}{{ messages[0].content }}", "such as --set tokenizer.date=2024-07-26"),
    ("no.jinja", "tokenizer.chat_template: cannot read"),
    (r"{{ '\ud83d' }}", r"does not compile: \ud83d and its like are no characters"),
]


@pytest.mark.parametrize(
    ("template", "what", "workers"), [*((*one, 1) for one in BAD_TEMPLATES), (*BAD_TEMPLATES[3], 2)]
)
def test_templates_that_cannot_be_used(pack: Packer, template: str, what: str, workers: int) -> None:
    assert what in pack.refused(CHAT, *with_template(template), "--workers", workers, format="messages")


def test_the_date_that_a_template_wants_can_be_given_as_its_message_says(pack: Packer) -> None:
    template = "{{ strftime_now('%Y') }}{% for m in messages %}{{ m.content }}{% endfor %}"
    pack.packed(CHAT, *with_template(template), "--set", "tokenizer.date=2024-07-26", format="messages")


def test_a_template_that_refuses_a_row(pack: Packer) -> None:
    refuse = "{% if m.role == 'cat' %}{{ raise_exception('no cats') }}{% endif %}"
    template = f"{{% for m in messages %}}{refuse}{{{{ m.content }}}}{{% endfor %}}"
    pack.packed(CHAT + CHAT.replace(b"user", b"cat") + CHAT, *with_template(template), format="messages")
    ((line, reason, detail),) = pack.rejects()
    assert (line, reason) == (2, "template_error")
    assert "no cats" in detail


def test_a_template_that_refuses_every_row(pack: Packer) -> None:
    message = pack.refused(CHAT * 2, *with_template("{{ raise_exception('no.') }}"), format="messages")
    assert "nothing is left to pack: of 2 rows, 0 gave examples (template_error 2)" in message
    assert "TemplateError: no. All are in" in message
    assert message.endswith("rejects.jsonl. Check tokenizer.chat_template\n")


def test_one_row_is_counted_as_one(pack: Packer) -> None:
    """Unreadable rows and examples left out get messages of their own, and one of either is singular."""
    message = pack.refused(b"\n")
    assert "of 1 row, 0 gave examples. All are blank" in message
    asks = b'{"messages": [{"role": "user", "content": "hi"}]}\n'
    message = pack.refused(asks, format="messages")
    assert (
        "of 1 row, 1 gave examples; of 1 example, it was left out (untrained 1). The mask trains nothing in" in message
    )
    message = pack.refused(asks * 3, format="messages")
    assert "of 3 rows, 3 gave examples; of 3 examples, all were left out (untrained 3). The mask" in message
    message = pack.refused(b'{"input_ids": [5]}\n' * 3, format="tokenized")
    assert "(untrained 3). They have one token each, and the first token of a document is never trained" in message
    message = pack.refused(b'{"text": ""}\n' * 3)
    assert message.endswith("rejects.jsonl. Their columns are there but empty: check the program that wrote them\n")


def test_a_tokenizer_without_a_template(pack: Packer) -> None:
    folder = pack.folder / "bare"
    shutil.copytree(pack.tokenizer, folder)
    for path in folder.glob("*.jinja"):
        path.unlink()
    pack.tokenizer = folder
    message = pack.refused(CHAT, format="messages")
    assert "the tokenizer bare has no chat template" in message
    assert "give a file with a jinja template: --set tokenizer.chat_template=template.jinja" in message
    pack.packed(TEXT)  # which needs none


def test_tokenizer_folders_that_are_none(pack: Packer) -> None:
    pack.tokenizer = pack.folder / "tok"
    assert f"tokenizer.path: the folder {pack.tokenizer} does not exist" in pack.refused(TEXT)
    pack.tokenizer.touch()
    assert "is a file; give the tokenizer's folder" in pack.refused(TEXT)
    pack.tokenizer.unlink()
    pack.tokenizer.mkdir()
    (pack.tokenizer / "weights.bin").touch()
    message = pack.refused(TEXT)
    assert f"{pack.tokenizer} has no tokenizer.json, and transformers cannot load a tokenizer from it" in message
    assert "The folder holds: weights.bin. transformers says: " in message


# Configurations


@pytest.mark.parametrize("length", [0, 1, -5])
def test_no_row_holds_less_than_two_tokens(pack: Packer, length: int) -> None:
    message = pack.refused(TEXT, "--max-length", length)
    assert f"truncate.max_length: input should be greater than or equal to 2 (got {length})" in message


@pytest.mark.parametrize("length", [2, 2047, 131_072])
@pytest.mark.parametrize("strategy", ["bfd", "wrapped"])
def test_any_other_length_works(pack: Packer, length: int, strategy: str) -> None:
    data = b"".join(b'{"text": "%s"}\n' % (b"so it goes " * n) for n in range(1, 60))
    manifest = pack.packed(data, "--max-length", length, "--set", f"pack.strategy={strategy}")
    assert manifest.max_length == length
    assert 0 < manifest.splits["train"].tokens <= length * manifest.splits["train"].rows


BAD_OPTIONS: list[tuple[list[object], str]] = [
    (["--set", "trunc.max_length=3"], "trunc: there is no such key; did you mean truncate?"),
    (["--set", "pack.strateg=none"], "pack.strateg: there is no such key; did you mean strategy?"),
    (
        ["--set", "pack.strategy=best"],
        "pack.strategy: input should be 'bfd', 'tight', 'bfd_split', 'wrapped' or 'none' (got 'best')",
    ),
    (["--set", "truncate.max_length=long"], "truncate.max_length: input should be a whole number"),
    (["--set", "nothing"], "--set nothing: write key.path=value"),
    (["--set", "sources.1.name=x"], "there is no item '1' in a list of 1; count from 0"),
    (["--set", "run.memory=1MiB"], "is too small for the driver and one worker; give it at least"),
    (["--set", "run.memory=12 cows"], "'12 cows' is not a size"),
    (["--set", "tokenizer.engine=magic"], "tokenizer.engine: input should be 'auto'"),
    (["--set", "pack.align=3"], "truncate.max_length (2048) must be a multiple of 3 for pack.align; take 2046 or 2049"),
    (["--workers", 0], "run.workers: input should be greater than or equal to 1 (got 0)"),
]


@pytest.mark.parametrize(("options", "what"), BAD_OPTIONS)
def test_bad_options(pack: Packer, options: list[object], what: str) -> None:
    assert what in pack.refused(TEXT, *options)


def test_an_unknown_format(pack: Packer) -> None:
    message = pack.refused(TEXT, format="csv")
    assert "sources.0.format: input should be auto, messages, " in message
    assert "text, apps or python:module:function (got 'csv')" in message
    assert len(message.splitlines()) == 1


# Output folders


def test_a_folder_that_holds_something_else(pack: Packer) -> None:
    pack.out.mkdir()
    for name in ("b.txt", "a.txt"):
        (pack.out / name).write_text("mine")
    assert f"out: {pack.out} has other content (a.txt, b.txt); choose an empty folder" in pack.refused(TEXT)
    assert sorted(path.name for path in pack.out.iterdir()) == ["a.txt", "b.txt"]


@pytest.mark.parametrize("content", ["{}", "[]", "mine", '{"hash": "x", "name": "an app"}'])
def test_a_manifest_of_somebody_else(pack: Packer, content: str) -> None:
    pack.out.mkdir()
    (pack.out / "manifest.json").write_text(content)
    done = pack(TEXT)
    assert done.code == 2
    assert "has other content (manifest.json)" in done.err
    assert (pack.out / "manifest.json").read_text() == content


@pytest.mark.parametrize("below", ["", "deep/er"])
def test_a_file_where_the_folder_should_be(pack: Packer, below: str) -> None:
    file = pack.out
    file.write_text("mine")
    pack.out = file / below
    assert f"out: {file} is a file; choose a folder" in pack.refused(TEXT)
    assert file.read_text() == "mine"


def test_an_empty_folder_and_a_new_one_are_fine(pack: Packer) -> None:
    pack.out.mkdir()
    pack.packed(TEXT)
    pack.out = pack.folder / "new" / "deep" / "er"
    pack.packed(TEXT)


CHANGES: list[tuple[list[object], bytes, str]] = [
    (["--max-length", 77], TEXT, "truncate.max_length: 2048 → 77\nChoose"),
    (
        ["--set", "seed=1", "--set", "pack.shuffle=false"],
        TEXT,
        "pack.shuffle: true → false\n  seed: 42 → 1\nChoose",
    ),
    (["--set", "sources.0.name=b"], TEXT, 'sources.0.name: "text" → "b"\nChoose'),
    (["--format", "messages"], TEXT, 'sources.messages.format: "text" → "messages"\nChoose'),
    ([], TEXT * 2, "input in of source text: has changed since (24 → 48 bytes)\n"),
]


@pytest.mark.parametrize(("options", "data", "what"), CHANGES)
def test_another_run_on_the_same_folder_is_refused_with_what_differs(
    pack: Packer, options: list[object], data: bytes, what: str
) -> None:
    pack.packed(TEXT)

    def contents() -> dict[Path, bytes]:
        leases = pack.out / "_run" / "lease"  # whoever works there now, and whoever was refused
        return {path: path.read_bytes() for path in pack.out.rglob("*") if path.is_file() and path.parent != leases}

    files = contents()
    message = pack.refused(data, *options)
    assert f"out: {pack.out} belongs to another run. Differences (there → here):\n  {what}" in message
    assert "Choose another folder with --out" in message
    assert contents() == files
    shutil.rmtree(pack.out / "_run")  # as in a dataset that was copied: its manifest still says whose it is
    assert what in pack.refused(data, *options)


def test_one_input_more_is_another_run(pack: Packer) -> None:
    pack.packed(TEXT)
    (pack.folder / "more.jsonl").write_bytes(TEXT + TEXT)
    message = pack.refused(None, "--input", pack.folder / "more.jsonl")
    assert "  input more of source text: was not given\n" in message


def test_the_same_run_on_a_copy_without_its_notes(pack: Packer) -> None:
    manifest = pack.packed(TEXT)
    shutil.rmtree(pack.out / "_run")
    assert pack.packed(None) == manifest


DAMAGED = ["shards/*.arrow", "documents.parquet", "state.json", "rejects.jsonl"]


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("damage", ["cut", pytest.param("gone", marks=pytest.mark.slow)])
def test_what_is_damaged_is_written_anew(pack: Packer, name: str, damage: str) -> None:
    manifest = pack.packed(TEXT * 5 + b"{\n")
    (path,) = pack.out.glob(name)
    if damage == "cut":
        os.truncate(path, path.stat().st_size - 7)
    else:
        path.unlink()
    done = pack.command("verify", pack.out)
    assert done.code == 1
    assert path.name in done.out
    assert f"packtrain repair {pack.out} rebuilds the files named above" in done.out
    assert pack.packed(None) == manifest


def test_a_cached_part_that_is_damaged_is_made_anew(pack: Packer) -> None:
    manifest = pack.packed(TEXT)
    (part,) = pack.cache.glob("encoded/*/*.arrow")
    os.truncate(part, part.stat().st_size - 7)
    shutil.rmtree(pack.out)
    assert pack.packed(None) == manifest


def test_notes_that_are_damaged(pack: Packer) -> None:
    manifest = pack.packed(TEXT)
    (pack.out / "_run" / "request.json").write_text("{")
    assert pack.packed(None) == manifest
    (pack.out / "_run" / "request.json").write_text("{")
    assert pack.command("inspect", pack.out).code == 0
    shutil.copytree(pack.out, pack.folder / "unfinished")
    pack.out = pack.folder / "unfinished"
    (pack.out / "manifest.json").unlink()
    (pack.out / "_run" / "plan.json").write_text("{")
    assert f"{pack.out / '_run' / 'plan.json'} is damaged" in pack.refused(None, code=1)


def test_a_manifest_that_was_changed(pack: Packer) -> None:
    pack.packed(TEXT)
    path = pack.out / "manifest.json"
    path.write_text(path.read_text().replace('"rows_read": 1', '"rows_read": 2'))
    for command in (["verify", pack.out], ["inspect", pack.out]):
        done = pack.command(*command)
        assert done.code == 1
        assert f"{path} was changed after it was written" in done.err
    assert pack(None).code == 1


# Disks. Root may write anywhere, so these need a file system of their own, and leave to mount it.


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """`mounted("size=4m")` is a folder on a file system in memory, made or changed."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(options: str) -> Path:
        again = "remount," if place.is_mount() else ""
        command = ["mount", "-t", "tmpfs", "-o", again + options, "tmpfs", str(place)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("there is no mount command")
        if done.returncode:
            pytest.skip(f"mounting is not permitted: {done.stderr.strip()}")
        return place

    yield mount
    if place.is_mount():
        subprocess.run(["umount", "-l", str(place)], check=False)


def test_a_folder_that_cannot_be_written(pack: Packer, mounted: Callable[[str], Path]) -> None:
    pack.out = mounted("ro") / "out"
    assert re.search(f"{pack.out} cannot be written: Read-only file system; choose", pack.refused(TEXT))
    prep = ("prep", "--format", "text", "--input", pack.file, "-o", pack.out.parent / "x.jsonl")
    assert pack.command(*prep).code == 2
    cache, pack.out = pack.out, pack.folder / "elsewhere"
    assert f"{cache}" in pack.refused(TEXT, "--set", f"cache={cache}")
    assert "cannot be written" in pack.command(*prep).err


def test_a_disk_too_small_is_told_before_the_work(pack: Packer, mounted: Callable[[str], Path]) -> None:
    pack.out = mounted("size=1m") / "out"
    message = pack.refused(TEXT * 100_000, code=1)
    detail = (
        r"not enough disk space for encoding and packing: about [\d.]+ MiB are needed, but the disk of .* has 1\.0 MiB"
    )
    assert re.search(detail, message)
    left = sorted(path.name for path in pack.out.rglob("*") if path.is_file())
    assert left == ["failed.json", "run-000001.json"]  # for whoever waits for it


FULL = (
    "packtrain: the disk that holds (.*) is full; free some space, or choose a folder on another disk, "
    "then run the same command again\n"
)


@pytest.mark.slow
def test_a_disk_that_fills_up(pack: Packer, mounted: Callable[[str], Path]) -> None:
    """Documents of one token need more beside their tokens than the estimate allows for."""
    options = ("--set", "output.shard_bytes=256KiB")
    expected = pack.packed(b'{"text": "a"}\n' * 60_000, *options)
    pack.out, pack.cache = mounted("size=2m") / "out", pack.out.parent / "disk" / "cache"
    stopped = set()
    for size in range(2, 40, 2):
        mounted(f"size={size}m")
        done = pack(None, *options)
        assert list(pack.out.parent.rglob(".tmp-*")) == []
        if done.code == 0:
            break
        assert done.code == 1
        assert not (pack.out / "manifest.json").exists()
        if "not enough disk space for" not in done.err:
            found = re.fullmatch(FULL, done.err)
            assert found is not None, done.err
            stopped.add(Path(found[1]).relative_to(pack.out.parent).parts[0])
    assert done.code == 0
    assert stopped, "it never filled up"
    assert pack.packed(None, *options) == expected


# Kills and interruptions


@dataclass(frozen=True)
class Corpus:
    """Many small inputs, and what an undisturbed run makes of them."""

    config: Path
    manifest: bytes
    parts: int
    shards: int


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Path, answered: Callable[[Path], Path]) -> Corpus:
    folder = tmp_path_factory.mktemp("corpus")
    chance = random.Random(1)
    words = [
        "the",
        "mules",
        "left",
        "valley",
        "before",
        "sun",
        "was",
        "up",
        "def",
        "return",
        "for",
        "in",
        "range",
        "1",
        "22",
        "333",
        "über",
        "naïve",
        "中文",
        "🙂",
    ]
    names = [f"{number:03d}.jsonl" for number in range(40)]
    for name in names:
        rows = [{"text": " ".join(chance.choices(words, k=chance.randrange(5, 200)))} for _ in range(60)]
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "out": "out",
        "cache": "cache",
        "tokenizer": {"path": str(tiny_tokenizer), "engine": "tokenizers"},
        # A source each, so that they are not joined: there should be many tasks to kill.
        "sources": [{"name": f"words-{name[:3]}", "format": "text", "path": name} for name in names],
        "truncate": {"max_length": 256},
        "output": {"shard_bytes": "96KiB"},
        "run": {"workers": 2, "report": False},
    }
    (folder / "run.yaml").write_text(json.dumps(config))
    shutil.copytree(answered(tiny_tokenizer), folder / "cache" / "tokenizers")
    done = warm.run(["run", folder / "run.yaml"])
    assert (done.returncode, done.stderr) == (0, "")
    shards = len(list((folder / "out" / "shards").iterdir()))
    assert shards > 24
    return Corpus(folder / "run.yaml", (folder / "out" / "manifest.json").read_bytes(), len(names), shards)


class Started:
    """A run in its own process group, stopped at a point of its work."""

    def __init__(self, corpus: Corpus, folder: Path, start: Callable[[list[str]], warm.Process | Popen]) -> None:
        self.out = folder / "out"
        self.cache = folder / "cache"
        shutil.copytree(corpus.config.parent / "cache" / "tokenizers", self.cache / "tokenizers")
        self.command = ["run", str(corpus.config), "--out", str(self.out), "--set", f"cache={self.cache}"]
        self.process = start(self.command)
        self.family: list[psutil.Process] = []

    def reach(self, stage: str) -> None:
        """Wait until ten tasks of a stage are done."""
        place, pattern = (self.cache, "encoded/*/*.json") if stage == "encode" else (self.out, "_run/shards/*.json")
        end = time.monotonic() + 60
        while len(list(place.glob(pattern))) < 10:
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < end
            time.sleep(0.002)
        self.family = psutil.Process(self.process.pid).children(recursive=True)

    def workers(self) -> list[psutil.Process]:
        """The processes below the fork server."""
        return [process for process in self.family if process.ppid() != self.process.pid]

    def ended(self) -> Outcome:
        """Wait for the run and for everything that it started."""
        out, err = self.process.communicate(timeout=60)
        assert self.process.returncode is not None
        end = time.monotonic() + 20
        while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in self.family):
            assert time.monotonic() < end, "it left processes behind"
            time.sleep(0.02)
        return Ended(self.process.returncode, out, err)

    def finish(self, corpus: Corpus) -> None:
        """The same command again makes what an undisturbed run makes, and clears away what was left."""
        assert not (self.out / "manifest.json").exists(), "it was stopped too late to show anything"
        done = warm.run(self.command)
        assert (done.returncode, done.stderr) == (0, "")
        assert (self.out / "manifest.json").read_bytes() == corpus.manifest
        assert list(self.out.rglob(".tmp-*")) == []
        assert verify(self.out, deep=True).sound


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


@pytest.fixture
def started(corpus: Corpus, tmp_path: Path) -> Iterator[Started]:
    yield from start(corpus, tmp_path, warm.Process)


@pytest.fixture
def installed(corpus: Corpus, tmp_path: Path) -> Iterator[Started]:
    """The same, by the installed program."""

    def program(arguments: list[str]) -> Popen:
        return subprocess.Popen(
            [PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    yield from start(corpus, tmp_path, program)


def start(corpus: Corpus, folder: Path, how: Callable[[list[str]], warm.Process | Popen]) -> Iterator[Started]:
    run = Started(corpus, folder, how)
    yield run
    with suppress(ProcessLookupError):
        os.killpg(run.process.pid, signal.SIGKILL)
    run.process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["encode", "pack"])
def test_a_run_that_is_killed_goes_on(started: Started, corpus: Corpus, stage: str) -> None:
    started.reach(stage)
    os.killpg(started.process.pid, signal.SIGKILL)
    assert started.ended().code == -signal.SIGKILL
    started.finish(corpus)
    assert list(started.cache.rglob(".tmp-*")) == []


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGKILL, -9, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 130, marks=pytest.mark.slow),
    ],
)
def test_workers_do_not_outlive_their_driver(started: Started, corpus: Corpus, number: int, code: int) -> None:
    started.reach("encode")
    assert len(started.workers()) == 2
    started.process.send_signal(number)
    assert started.ended().code == code
    started.finish(corpus)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
@pytest.mark.parametrize("stage", ["encode", pytest.param("pack", marks=pytest.mark.slow)])
def test_an_interruption_says_how_to_go_on(
    started: Started, corpus: Corpus, stage: str, number: signal.Signals
) -> None:
    started.reach(stage)
    os.killpg(started.process.pid, number)  # a terminal sends it to the whole group, and so does a scheduler
    ended = started.ended()
    assert ended.code == 130
    assert ended.err == "packtrain: interrupted; run the same command again to continue\n"
    assert list(started.out.rglob(".tmp-*")) + list(started.cache.rglob(".tmp-*")) == []
    started.finish(corpus)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.65, 1.0])
def test_an_interruption_while_it_starts(installed: Started, corpus: Corpus, seconds: float) -> None:
    time.sleep(seconds)
    os.killpg(installed.process.pid, signal.SIGINT)
    ended = installed.ended()
    if (installed.out / "manifest.json").exists():
        pytest.skip("it was done already")
    assert (ended.code, ended.err) == (130, "packtrain: interrupted; run the same command again to continue\n")
    installed.finish(corpus)


@pytest.mark.parametrize("stage", ["encode", pytest.param("pack", marks=pytest.mark.slow)])
def test_a_worker_that_is_killed_is_replaced(started: Started, corpus: Corpus, stage: str) -> None:
    started.reach(stage)
    workers = started.workers()
    if not workers:
        pytest.skip("it was done already")
    workers[0].kill()
    ended = started.ended()
    assert (ended.code, ended.err) == (0, "")
    assert (started.out / "manifest.json").read_bytes() == corpus.manifest
    assert list(started.out.rglob(".tmp-*")) == []
