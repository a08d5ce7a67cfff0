"""What a process that loads a tokenizer folder imports late, for the server of `warm.loads_tokenizers`."""

import sys

sys.modules["torch"] = None  # type: ignore[assignment]

from transformers import AutoTokenizer, PreTrainedTokenizerFast  # noqa: E402, F401
