"""Asks transformers what a tokenizer folder says, in a child process that runs this module as a program.

The import of transformers takes seconds, and whatever it prints must not reach our output.
"""

import contextlib
import gc
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ...schemas.errors import TaskError, TokenizerError
from ...schemas.fingerprint import hash_bytes
from ...stages.tokenize.vocabulary import SpecialTokenAffixes
from ..execute.executor import exit_reason, out_of_memory_kills
from .spec import TokenizerSpec

ASK_SECONDS = 300.0
"""How long transformers may take to load a tokenizer; it takes seconds."""
ASK_BYTES = 16 << 30
"""Address space that it may use for that; it uses some gigabytes."""
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
"""Environment variables of the process, besides this one's."""


class Question:
    """A child process that asks transformers about a folder, within `ASK_SECONDS` and `ASK_BYTES`.

    It gets a copy of the files that were read, so that it opens no other, and finds no code.

    Args:
        folder: the tokenizer's, for messages.
        files: its small files, by their names in it.
    """

    def __init__(self, folder: Path, files: Mapping[str, bytes]) -> None:
        self.folder = folder
        self.temporary = tempfile.TemporaryDirectory(prefix="packtrain-tokenizer-")
        # Of the same name, so that nothing depends on what the copy is called.
        self.copy = Path(self.temporary.name, folder.name or "tokenizer")
        self.copy.mkdir()
        for name, content in files.items():
            # Further templates are in a folder of their own.
            (self.copy / name).parent.mkdir(exist_ok=True)
            (self.copy / name).write_bytes(content)
        # If this process is killed, and the kernel has killed more by then, memory was the reason.
        self.kills_before = out_of_memory_kills()
        # -P prevents the import of a folder called transformers in the working directory.
        command = [sys.executable, "-P", "-m", __name__, str(self.copy), str(ASK_BYTES)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | ENVIRONMENT,
        )


def answer_of(question: Question) -> TokenizerSpec:
    """What transformers says of a folder.

    Raises:
        TokenizerError: transformers cannot load it, or not within the limits.
        TaskError: the process was killed by a signal.
    """
    folder = question.folder
    process = question.process
    output, log = _outputs_of(question)
    # Rust aborts when the limit of memory is reached, while Python raises an error.
    if process.returncode == -signal.SIGABRT and b"memory allocation" in log:
        raise _memory_error(folder)
    if process.returncode < 0:  # a signal says nothing about the folder
        reason = exit_reason(process.returncode, question.kills_before)
        raise TaskError(
            f"the process that loads the tokenizer folder {folder} died: {reason}. Free memory, and run the same "
            "command again"
        )
    try:
        answer = msgspec.json.decode(output, type=dict[str, Any])
    except msgspec.MsgspecError:
        last_line = "".join(log.decode(errors="replace").strip().splitlines()[-1:])  # "" of an empty log
        answer = {"error": f"the process that loads it ended with {process.returncode}: {last_line}"}
    if "error" not in answer:
        return msgspec.convert(answer, TokenizerSpec)
    error = str(answer["error"])
    if error.startswith(MemoryError.__name__):
        raise _memory_error(folder)
    raise _refusal(folder, error.replace(str(question.copy), str(folder)))


def _outputs_of(question: Question) -> tuple[bytes, bytes]:
    """Wait for the process of a question; its standard output and standard error.

    Raises:
        TokenizerError: it took too long.
    """
    process = question.process
    with question.temporary, process:
        try:
            return process.communicate(timeout=ASK_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise TokenizerError(
                f"the tokenizer folder {question.folder} was not loaded within {ASK_SECONDS:,.0f} seconds, which no "
                "tokenizer needs; take another one, or another copy of it"
            ) from None
        except BaseException:  # such as Ctrl-C: the process must not outlive this one
            process.kill()
            raise


def _refusal(folder: Path, error: str) -> TokenizerError:
    """The error for a folder that transformers cannot load. What it says itself is seldom what is wrong.

    Args:
        error: what it says.
    """
    if (folder / "tokenizer.json").is_file():
        return TokenizerError(f"transformers cannot load a tokenizer from {folder}: {error}")
    if not any(_is_of_tokenizer(path.name) for path in folder.iterdir()):
        # People give the folder above the tokenizer's, such as the folder of a training with its checkpoints.
        below = next((path for path in sorted(folder.glob("*/tokenizer.json"))), None)
        return TokenizerError(
            f"{folder} has no tokenizer: no tokenizer.json, tokenizer.model or vocabulary is in it; give the folder of "
            f"a model with its tokenizer{f', such as {below.parent}' if below is not None else ''}"
        )
    return TokenizerError(f"{folder} has no tokenizer.json, and transformers cannot load a tokenizer from it: {error}")


def _is_of_tokenizer(name: str) -> bool:
    """Whether a file of this name may be a part of a tokenizer, in any of the forms that transformers reads."""
    return "tok" in name or "vocab" in name or name.endswith((".model", ".spm", ".bpe"))


def _memory_error(folder: Path) -> TokenizerError:
    return TokenizerError(
        f"the tokenizer folder {folder} needs more than {ASK_BYTES >> 30:,} GiB of memory to be loaded, which no "
        "tokenizer does; take another one, or another copy of it"
    )


# The child process


def _resolve(folder: str) -> TokenizerSpec:
    """What transformers knows of a folder."""
    sys.modules["torch"] = None  # type: ignore[assignment]  # a tokenizer needs none, and its import takes seconds
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(f"{type(tokenizer).__name__} is written in Python; a tokenizer.json is needed")
    # Older versions of transformers also list the additional tokens here; templates do not use them by name.
    special = {}
    for name, token in tokenizer.special_tokens_map.items():
        if not isinstance(token, list):
            special[name] = str(token)
    around = _affixes(tokenizer, special)
    eos_id = tokenizer.eos_token_id
    pad_id = tokenizer.pad_token_id
    template = tokenizer.chat_template
    if isinstance(template, dict):  # several, by name
        template = template.get("default")
    # A folder may say that its tokenizer cuts or pads texts, which would change what is counted and packed.
    backend.no_truncation()
    backend.no_padding()
    json = backend.to_str()
    special_tokens = msgspec.json.encode([special, around, eos_id, pad_id], order="sorted")
    return TokenizerSpec(
        json=json,
        chat_template=template,
        special_tokens=special,
        around=around,
        eos_id=eos_id,
        pad_id=eos_id if pad_id is None else pad_id,
        hash=hash_bytes(json.encode() + b"\0" + special_tokens),
    )


def _affixes(tokenizer: Any, special: Mapping[str, str]) -> SpecialTokenAffixes:
    """The tokens that a tokenizer puts around a plain text.

    Args:
        tokenizer: a `transformers.PreTrainedTokenizerFast`.
        special: its special tokens, by name.

    Raises:
        ValueError: it puts tokens elsewhere, too.
    """
    # They show on any text: in `<s> a </s>`, the ids of `a` begin at 1.
    ids = tokenizer("a")["input_ids"]
    text_ids = tokenizer("a", add_special_tokens=False)["input_ids"]
    begins = (begin for begin in range(len(ids)) if ids[begin : begin + len(text_ids)] == text_ids)
    text_begin = next(begins, None)
    if text_begin is None:
        raise ValueError(f"its special tokens are not only before and after the text: {text_ids} becomes {ids}")
    prefix = tuple(ids[:text_begin])
    suffix = tuple(ids[text_begin + len(text_ids) :])
    eos = special.get("eos_token", "")
    # As text only where a text can have them already, so that they are not put twice: one token with a known text.
    prefix_text = ""
    if prefix == (tokenizer.bos_token_id,):
        prefix_text = special.get("bos_token", "")
    suffix_text = ""
    if suffix == (tokenizer.eos_token_id,):
        suffix_text = eos
    return SpecialTokenAffixes(prefix, suffix, prefix_text, suffix_text, eos)


def _main(folder: str) -> None:
    """Print what transformers knows of a folder, or why it cannot load it, as JSON."""
    with contextlib.redirect_stdout(sys.stderr):  # libraries may print; standard output holds only the answer
        try:
            answer: Any = _resolve(folder)
        except Exception as error:
            if "trust_remote_code" in str(error):
                error = ValueError("it needs code from the folder, which packtrain never runs")
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            answer = {"error": f"{type(error).__name__}: {' '.join(lines)[:600]}".rstrip(".: ")}
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    sys.stdout.buffer.flush()
    os._exit(0)  # taking all of transformers apart would let the parent wait another fifth of a second


if __name__ == "__main__":
    tokenizer_folder = sys.argv[1]
    address_space = int(sys.argv[2])
    _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
    if hard_limit != resource.RLIM_INFINITY:
        address_space = min(address_space, hard_limit)
    resource.setrlimit(resource.RLIMIT_AS, (address_space, hard_limit))
    gc.disable()  # imports make many objects and little garbage: a tenth of a second
    _main(tokenizer_folder)
