"""The program that loads a tokenizer folder with transformers, and prints what it found as JSON.

It runs in a separate process, because importing transformers takes seconds, and whatever transformers prints must not
reach our output.
"""

import contextlib
import sys
from typing import Any, TypedDict

import msgspec

FORMAT = 2
"""Version of the answer; increase it whenever the answer changes."""


class Answer(TypedDict):
    """What transformers knows; see `TokenizerSpec`."""

    json: str
    chat_template: str | dict[str, str] | None
    special_tokens: dict[str, str]
    bos_id: int | None
    eos_id: int | None
    pad_id: int | None
    prefix_ids: list[int]
    suffix_ids: list[int]


def _resolve(folder: str) -> Answer:
    sys.modules["torch"] = None  # type: ignore[assignment]  # a tokenizer needs none, and its import takes seconds
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(f"{type(tokenizer).__name__} is written in Python; a tokenizer.json is needed")
    whole = tokenizer("a")["input_ids"]
    inner = tokenizer("a", add_special_tokens=False)["input_ids"]
    at = next((i for i in range(len(whole)) if whole[i : i + len(inner)] == inner), None)
    if at is None:
        raise ValueError(f"its special tokens are not only before and after the text: {inner} becomes {whole}")
    backend.no_truncation()
    backend.no_padding()
    return {
        "json": backend.to_str(),
        "chat_template": tokenizer.chat_template,
        # Older versions of transformers also list the additional tokens here; templates do not use them by name.
        "special_tokens": {k: str(v) for k, v in tokenizer.special_tokens_map.items() if not isinstance(v, list)},
        "bos_id": tokenizer.bos_token_id,
        "eos_id": tokenizer.eos_token_id,
        "pad_id": tokenizer.pad_token_id,
        "prefix_ids": whole[:at],
        "suffix_ids": whole[at + len(inner) :],
    }


def _main(folder: str) -> None:
    # Libraries may print; standard output must contain only the answer.
    with contextlib.redirect_stdout(sys.stderr):
        try:
            answer: Any = _resolve(folder)
        except Exception as error:
            if "trust_remote_code" in str(error):
                error = ValueError("it needs code from the folder, which packtrain never runs")
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            answer = {"error": f"{type(error).__name__}: {' '.join(lines)[:600]}".rstrip(".: ")}
    sys.stdout.buffer.write(msgspec.json.encode(answer))


if __name__ == "__main__":
    _main(sys.argv[1])
