"""The program that loads a tokenizer folder with transformers, and prints what it found as JSON.

It runs in a separate process, because importing transformers takes seconds, and whatever transformers prints must not
reach our output.
"""

import contextlib
import functools
import gc
import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any, TypedDict

import msgspec

FORMAT = 1
"""Version of the child's answer; increase it whenever the answer changes."""


class Answer(TypedDict):
    """What the child found; see `TokenizerSpec`."""

    format: int
    json: str
    chat_template: str | dict[str, str] | None
    special_tokens: dict[str, str]
    bos_id: int | None
    eos_id: int | None
    pad_id: int | None
    prefix_ids: list[int]
    suffix_ids: list[int]


def _resolve(folder: str) -> Answer:
    _hasten()
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
        "format": FORMAT,
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


def _hasten() -> None:
    """Save what takes most of the time of this short process, and does not change what it finds."""
    sys.modules["torch"] = None  # type: ignore[assignment]
    gc.disable()
    # transformers reads the source files of its 500 models twice when it is imported, because the cache that should
    # avoid that holds 128 of them.
    bounded = functools.lru_cache

    def unbounded(maxsize: Any = None, typed: bool = False) -> Any:
        return bounded(None)(maxsize) if callable(maxsize) else bounded(None, typed)

    functools.lru_cache = unbounded
    sys.meta_path.insert(0, _QuickLists())


class _QuickLists(MetaPathFinder):
    """Lets transformers find the list of names in each of 3,000 source files without a look at every line."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == "transformers.utils.import_utils" else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_change(module: Any) -> None:
            execute(module)
            names = getattr(module, "fetch__all__", None)
            if names is not None:  # it takes the last line that begins like this
                module.fetch__all__ = lambda text: names(text[text.rfind("\n__all__") + 1 :])

        spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec


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
    sys.stdout.flush()
    os._exit(0)  # freeing everything would take a tenth of a second
