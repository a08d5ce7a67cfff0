"""The reasons of the ledger: why rows, examples and tokens are left out, what each means, and what to do."""

UNPROVED = "unproved"
"""The reason of conversations whose turns cannot be located, where the mask needs them."""

UNUSABLE = {
    "bad_ids": "An id is not in the tokenizer's vocabulary; use the tokenizer that made the ids.",
    "bad_labels": "Labels do not fit their ids; a label is the id of its own token, or -100.",
    "bad_mask": "A mask does not fit its ids, or holds something other than 0 and 1.",
    "bad_quotes": "Quotes of the CSV do not close; quote fields that hold quotes or line ends.",
    "bad_tests": "`input_output` is not an object with as many `inputs` as `outputs`; fix the row.",
    "bad_tool_call": "A tool call is not a JSON object with `name` and `arguments`; fix the row.",
    "call_role": "A role is that of a call or a result in other tools' data; `format: sharegpt` with `keys: "
    "{conversations: messages}` reads it.",
    "empty_completion": "The answer is empty or blank; remove such rows, or check the column's name.",
    "half_surrogate": "A text holds half of a surrogate pair, which is no character; its writer cut it in two. Correct "
    "the text.",
    "invalid_json": "The line is not JSON; check it, and the program that wrote it.",
    "invalid_utf8": "Some bytes are not UTF-8; convert the file, such as with `iconv -f LATIN1 -t UTF-8`.",
    "lost_content": "The chat template leaves out a message, a tool call or the tools; take a template that "
    "writes them, or name in `tokenizer.allow_lost` what may be lost.",
    "missing_key": "A column or key that the format needs is missing or null; fill it, name the column with `keys`, or "
    "take another format.",
    "more": "More rows of the same kind are counted but not listed.",
    "no_preference": "Chosen and rejected are equal; remove such rows.",
    "no_prompt": "The pair has no prompt, and its completions have no common beginning; name the prompt's column.",
    "no_template": "A conversation needs a chat template; set `tokenizer.chat_template`.",
    "no_tests": "The problem has no tests to judge programs with.",
    "not_a_pair": "The run packs preference pairs, and this row is not one; use a separate run for it.",
    "not_an_object": "The line is JSON but not an object; every row must be an object.",
    "not_text": "The row has images, sounds or the like, but only text can be packed; remove them or the row.",
    "packed_already": "Several documents share the row already; a reader of your own can take them apart.",
    "padded": "The row is padded; give rows without padding.",
    "preference": "The row is a preference pair; use a separate run for pairs.",
    "reader_error": "Your own reader failed on the row; its message is beside the row.",
    "reader_result": "Your own reader returned something that is not a row; its message is beside the row.",
    "row_too_long": "The line is longer than `max_row_bytes`; raise that, or split the row.",
    "template_error": "The chat template refused the conversation, for what is said beside the row; repair such rows, "
    "or take another template (`tokenizer.chat_template`).",
    "too_deep": "Lists and objects nest too deeply; flatten the row.",
    "train_flags": "Messages have different `train` flags or weights, but cannot be located; split the row, or remove "
    "them.",
    "two_roles": "A message has two roles that differ, `from` and `role`; leave one out.",
    "two_systems": "The row has two system texts that differ; leave one out.",
    "unknown_key": "Your own reader returned a row with a key that its format does not have.",
    "unknown_role": "A message has a role that the format, or the chat template, does not know; rename it.",
    UNPROVED: "Turns, thoughts or tool calls of the assistant cannot be located for certain, but the mask needs "
    "them; take a template that shows them, or `mask: completion`.",
    "unusable_column": "A column or key that changes what is trained elsewhere cannot be honoured here; its message is "
    "beside the row.",
    "unreadable_value": "A value of the table cannot be read by Python; fix the file.",
    "weight": "A weight is not a number from 0.000001 to 1,000,000 (or 0: not trained), or contradicts `train`; or "
    "one of the two is on a part of a content.",
    "wrong_columns": "The row has a different number of fields than the CSV's header; fix the file.",
    "wrong_type": "A value has the wrong type for the format; check `format` and `keys`. Its message is beside the "
    "row.",
}
"""Rows that cannot be used."""
UNWANTED = {
    "no_solution": "The problem has no solution to train on.",
    "not_taken": "The row comes after the first `max_rows` of its source.",
    "not_trained": "The turn is marked as not trained, so no example was made of it.",
    "not_wanted": "Your own reader returned nothing for the row.",
    "over_limit": "The problem has more solutions than `max_solutions`.",
    "where": "The condition `where` is not true for it; check it if that is unexpected.",
}
"""Rows and examples that were filtered out."""
CUT_UNTRAINED = "cut_untrained"
"""The reason of documents that a limit left without a trained token."""
NOT_DRAWN = "not_sampled"
"""The reason of examples that the weights of a mixture did not draw: they are left over, not lost."""
DECISIONS = {
    "contaminated": "It shares text with a row of the evaluation data; contamination.jsonl says which.",
    "cut_empty": "Truncation leaves nothing trained of one of the completions; raise `truncate.max_length`, or keep "
    "the other end (`truncate.keep`).",
    "cut_equal": "Truncation leaves both completions equal; raise `truncate.max_length`.",
    CUT_UNTRAINED: "The limits leave nothing trained; raise `truncate.max_length`, or keep the other end "
    "(`truncate.keep`).",
    "duplicate": "It is equal to an earlier one.",
    "empty": "It has no text; remove such rows, or check the column's name.",
    "equal": "Both completions are the same tokens; remove such rows.",
    "holdout": "It is held out, and only the training documents are used.",
    "max_tokens": "It is longer than its filter allows; raise `filter.max_tokens`.",
    "min_tokens": "It is shorter than its filter allows; lower `filter.min_tokens`.",
    NOT_DRAWN: "The weights of the sources did not draw it; a larger `weight`, or another seed, may.",
    "overlong": "It is longer than `truncate.max_length`, and `truncate.overlong` is `drop`; raise the one, or set the "
    "other to `truncate` or `split`.",
    "train": "It is not held out, and only held-out documents are used.",
    "untrained": "The mask trains none of its tokens, or only the first, which cannot be; it has no answer, "
    "or another `mask` trains it (`assistant` every answer of a chat).",
}
"""Examples left out by the configuration or their length; they are valid, and not among the rejects."""
OUTCOMES = (
    *("", "empty", "equal", UNPROVED, "contaminated", "min_tokens", "max_tokens", "untrained"),
    *("overlong", CUT_UNTRAINED, "cut_empty", "cut_equal", "duplicate", NOT_DRAWN, "holdout", "train"),
)
"""What can become of an encoded document: "" if it is packed, or the reason for which it is left out. If several hold,
the first of them counts. Only streams have the last two, for documents of the other split."""
TOKENS = {
    "alignment": "Padding for `pack.align` and `pack.parallel`; never trained.",
    "end_of_sequence": "The end-of-sequence token after each text.",
    "max_length": "Cut off, by `truncate.max_length`.",
    "overlap": "Repeated at the start of a piece, for context; never trained there.",
    "prompt": "The prompts of preference pairs, each a second time: before the rejected completion; never trained.",
    "repeats": "Further copies of examples, by `repeat` or `weight`.",
    "special": "Tokens that the tokenizer adds.",
    "untrained_piece": "Pieces of split examples without trained tokens.",
}
"""Tokens that are cut off, repeated or added."""
REASONS = UNUSABLE | UNWANTED | DECISIONS | TOKENS
OWN_REASON = "A reason of your own reader."
"""What a reason means that is not in the tables."""
