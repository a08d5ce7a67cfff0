"""The part of the configuration that compares training data with evaluation data."""

from typing import Literal

from pydantic import Field

from .section import ConfigModel, Paths


class DecontaminateConfig(ConfigModel):
    """Finds examples that share text with evaluation rows. Without this section, nothing is compared."""

    against: Paths = Field(min_length=1)
    """Evaluation files, as in a source's `path`. Columns such as question, problem, prompt, instruction, text or
    messages are what a row asks; solutions, answer, completion and the like are what it expects. Other columns do not
    count."""
    ngram: int = Field(default=13, ge=5, le=100)
    """An example shares text with a row if a run of this many words is in both, after Unicode NFKC, case folding and
    without punctuation. A question with fewer words is looked for as a whole, if it has at least five. Of an answer,
    half of its runs must be there. Frames that many rows have, numbers and code idioms do not count."""
    share: float = Field(default=0.0, ge=0.0, le=1.0)
    """Of a row's runs, at least this share must be in the example, such as 0.1. The default takes one run."""
    action: Literal["report", "drop"] = "report"
    """`report` lists such examples in contamination.jsonl and on the report's page. `drop` also leaves them out, with
    the reason `contaminated`."""
