"""The embedded demo: its problems have the public APPS fields, its tokenizer loses nothing."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import packtrain.pipeline.demo
import transformers
from packtrain.stages.prep import make_format

FOLDER = Path(packtrain.pipeline.demo.__file__).parent


def problems() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / "apps.jsonl").read_text(encoding="utf-8").splitlines()]


def test_the_problems_have_the_public_fields() -> None:
    fields = ["id", "question", "solutions", "input_output", "difficulty", "url", "starter_code"]
    for number, problem in enumerate(problems()):
        assert list(problem) == fields
        assert problem["id"] == number
        tests = json.loads(problem["input_output"])
        assert len(tests["inputs"]) == len(tests["outputs"]) > 0
        assert ("fn_name" in tests) == bool(problem["starter_code"])
        for solution in json.loads(problem["solutions"] or "[]"):
            compile(solution, f"problem {number}", "exec")
    assert Counter(problem["difficulty"] for problem in problems()) == {
        "introductory": 11,
        "interview": 12,
        "competition": 9,
    }


def test_the_problems_show_what_prep_counts() -> None:
    lines = (FOLDER / "apps.jsonl").read_bytes().splitlines(keepends=True)
    done = make_format("apps").prepare(enumerate(lines))
    assert (done.rows, len(done.examples), done.rejects) == (32, 77, [])
    assert (done.filtered, done.skipped) == ({"no_solution": 2}, {"duplicate": 2})


def test_the_tokenizer_loads_and_marks_the_assistant() -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(FOLDER / "tokenizer"))
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    messages = [
        {"role": "system", "content": " s "},
        {"role": "user", "content": "Łódź 🔔"},
        {"role": "assistant", "content": " x\n"},
        {"role": "user", "content": ""},
    ]
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\n s <|im_end|>\n<|im_start|>user\nŁódź 🔔<|im_end|>\n"
        "<|im_start|>assistant\n x\n<|im_end|>\n<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n"
    )
    marked = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    trained = [i for i, m in zip(marked["input_ids"], marked["assistant_masks"], strict=True) if m]
    assert tokenizer.decode(trained) == " x\n<|im_end|>"


def test_every_text_survives_the_tokenizer() -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(FOLDER / "tokenizer"))
    for problem in problems():
        for text in (problem["question"], problem["solutions"], "\t\r\n \u00a0\u3000 ﬁ e\u0301 🔔"):
            encoded = tokenizer(text, return_offsets_mapping=True)
            assert tokenizer.decode(encoded["input_ids"]) == text
            assert encoded["offset_mapping"][-1][1] == len(text) if text else True
