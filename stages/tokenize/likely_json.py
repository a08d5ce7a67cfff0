"""Predicts the tokenizer.json that transformers makes of a folder's, which takes transformers a second or two to say.

A prediction saves time if an engine is loaded from it meanwhile, and is never used for anything else: what is loaded is
used only if transformers' answer is the same text. So the rules here may be wrong, and need not cover every tokenizer.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Raw

_NULL = Raw(b"null")
_KEPT_AS_THEY_ARE = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes that use the folder's tokenizer.json. Others are rebuilt from their vocabulary."""
_REBUILT = {"add_prefix_space": True, "trim_offsets": True, "use_regex": True}
"""What a decoder of bytes has if its class makes it."""


def likely_json(tokenizer_json: bytes, config: bytes = b"{}") -> str | None:
    """Predict transformers' answer.

    Args:
        tokenizer_json: content of the folder's tokenizer.json.
        config: content of its tokenizer_config.json.

    Returns:
        the text that `tokenizers` would write, without truncation and padding; None if there is nothing to predict
        from.
    """
    try:
        fields = msgspec.json.decode(msgspec.json.format(tokenizer_json, indent=-1), type=dict[str, Raw])
        said = msgspec.json.decode(config, type=dict[str, Any])
        fields["truncation"] = fields["padding"] = _NULL
        fields["model"] = _model(fields["model"])
        fields["added_tokens"] = _added_tokens(fields["added_tokens"], set(_special(said)))
        if said.get("tokenizer_class", _KEPT_AS_THEY_ARE[0]) not in _KEPT_AS_THEY_ARE:
            for name, changes in (("pre_tokenizer", {"trim_offsets": True}), ("decoder", _REBUILT)):
                fields[name] = _byte_levels(fields[name], changes)
        return msgspec.json.encode(fields).decode()
    except Exception:  # whatever is wrong with the folder's files, transformers will say it
        return None


def _model(model: Raw) -> Raw:
    """The model as present versions of `tokenizers` write it: a merge is a pair, and BPE says `ignore_merges`."""
    whole = msgspec.json.decode(model, type=dict[str, Raw])
    if "merges" not in whole:
        return model
    if bytes(whole["merges"]).startswith(b'["'):
        pairs = [merge.split(" ") for merge in msgspec.json.decode(whole["merges"], type=list[str])]
        whole["merges"] = Raw(msgspec.json.encode(pairs))
    if "ignore_merges" not in whole:
        last = {name: whole.pop(name) for name in ("vocab", "merges")}
        whole |= {"ignore_merges": Raw(b"false"), **last}
    return Raw(msgspec.json.encode(whole))


def _added_tokens(added: Raw, special: set[str]) -> Raw:
    """The added tokens; those that the configuration names are special."""
    tokens = msgspec.json.decode(added, type=list[dict[str, Any]])
    for token in tokens:
        token["special"] = token["special"] or token["content"] in special
    return Raw(msgspec.json.encode(tokens))


def _special(config: dict[str, Any]) -> Iterator[str]:
    """The contents of a configuration's special tokens."""
    tokens = [value for name, value in config.items() if name.endswith("_token")]
    for name in ("additional_special_tokens", "extra_special_tokens"):
        tokens += config[name] if isinstance(config.get(name), list) else []
    declared = config.get("added_tokens_decoder")
    if isinstance(declared, dict):
        tokens += [one for one in declared.values() if isinstance(one, dict) and one.get("special")]
    for token in tokens:
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str):
            yield content


def _byte_levels(component: Raw, changes: dict[str, bool]) -> Raw:
    """A pre-tokenizer or decoder, with changes to its steps over bytes."""
    whole = msgspec.json.decode(component, type=dict[str, Any] | None)
    steps = [whole, *(whole.get("pretokenizers") or whole.get("decoders") or [])] if whole is not None else []
    for step in steps:
        if step.get("type") == "ByteLevel":
            step.update(changes)
    return Raw(msgspec.json.encode(whole))
