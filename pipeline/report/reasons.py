"""What the ledger's reason words mean, and what to do: a sentence each."""

from ...schemas.ledger import SourceLedger

REASONS = {
    # Rows that cannot be used.
    "bad_ids": "An id is none of the tokenizer's; give the tokenizer that made the ids.",
    "bad_labels": "Labels do not fit their ids; a label is the id of its own token, or -100.",
    "bad_mask": "A mask does not fit its ids, or holds something other than 0 and 1.",
    "bad_quotes": "Quotes of the CSV do not close; quote fields that hold quotes or line ends.",
    "bad_solutions": "The column `solutions` is no JSON list of texts; mend the row.",
    "bad_tool_call": "A tool call is no JSON object with `name` and `arguments`; mend the row.",
    "bad_tools": "The tools are no JSON list of objects; mend the row.",
    "bad_trained": "There are not as many flags of what is trained as ids; mend the reader.",
    "empty_completion": "There is a prompt and nothing to answer; remove such rows, or check the column's name.",
    "invalid_json": "The line is no JSON; look at it, and at what wrote it.",
    "invalid_utf8": "Some bytes are no UTF-8; convert the file.",
    "lost_content": "The chat template writes nothing of a message, a tool call or the tools; take a template that "
    "does, or name in `tokenizer.allow_lost` what may be lost.",
    "missing_key": "A column or a key that the format needs is not there; name it with `keys`, or take another format.",
    "more": "More rows of the same kind are counted, and not listed.",
    "no_preference": "Chosen and rejected say the same; remove such rows.",
    "no_prompt": "The pair has no prompt, and its completions have no beginning in common; name the prompt's column.",
    "no_template": "A conversation needs a chat template; set `tokenizer.chat_template`.",
    "not_a_pair": "The run is of preference pairs, and this row is none; give it a run of its own.",
    "not_an_object": "The line is JSON, and no object; a row is an object.",
    "not_plain": "The plain text has no place for a column of this row; set `style: chat`.",
    "not_text": "The row holds images, sounds or the like, and only text can be packed; remove them or the row.",
    "packed_already": "Several documents share the row already; give rows of one document.",
    "padded": "The row is padded; give rows without padding.",
    "preference": "The row is a preference pair; give pairs a run of their own.",
    "reader_error": "Your own reader failed on the row; its message is beside the row.",
    "reader_result": "Your own reader returned something that is no row; its message is beside the row.",
    "row_too_long": "The line is longer than `max_row_bytes`; raise that, or split the row.",
    "template_error": "The chat template refused the conversation; its message is beside the row.",
    "template_limit": "The chat template ran too long on the row, and was stopped.",
    "prompt_rewritten": "The chat template renders the prompt alone otherwise than within the conversation; take "
    "another template, or `mask: {on_rewritten: train}`.",
    "too_deep": "Lists and objects stand too many levels within one another; flatten the row.",
    "train_flags": "Messages are marked as trained or not where that cannot be followed; split the row, or take the "
    "flags out.",
    "two_systems": "The row has two system texts that differ; leave one out.",
    "unknown_key": "Your own reader returned a row with a key that its format does not have.",
    "unknown_role": "A turn is of somebody unknown; rename the role.",
    "unproved": "Nothing says surely where the assistant's turns lie, and the mask has to know; take a template that "
    "shows them, or `mask: completion`.",
    "unreadable_value": "A value of the table has no form in Python; mend the file.",
    "weight": "A turn's weight is neither 0 nor 1, or contradicts `train`; round the weights.",
    "wrong_columns": "The row has another number of fields than the head of the CSV; mend the file.",
    "wrong_type": "A value is of another type than the format takes; its message is beside the row.",
    # Rows and examples that are not wanted.
    "difficulty": "The problem is of another difficulty than was asked for.",
    "no_solution": "The problem has no solution to train on.",
    "not_taken": "The row comes after the first `max_rows` of its source.",
    "not_trained": "The turn says that it is not trained, so no example was made of it.",
    "not_wanted": "Your own reader returned nothing for the row.",
    "over_limit": "The problem has more solutions than `max_solutions`.",
    "where": "The condition `where` is not true of it.",
    # Examples that are left out.
    "cut_empty": "Truncation leaves one of the completions empty; raise `truncate.max_length`, or set "
    "`truncate.max_prompt_length`.",
    "cut_equal": "Truncation leaves both completions the same; raise `truncate.max_length`.",
    "cut_untrained": "The limits leave nothing of it to train; raise `truncate.max_length`, or set "
    "`truncate.keep: end`.",
    "duplicate": "It says the same as an earlier one.",
    "empty": "It holds no text.",
    "equal": "Both completions are the same tokens.",
    "max_tokens": "It is longer than its filter allows.",
    "min_tokens": "It is shorter than its filter allows.",
    "not_sampled": "The weights of the sources left it out.",
    "overlong": "It is longer than `truncate.max_length`, and `truncate.overlong` is `drop`.",
    "untrained": "The mask asks for none of its tokens, or only for the first, which cannot be trained.",
    # Tokens.
    "alignment": "Padding up to a multiple of `pack.align`; never trained.",
    "end_of_sequence": "The end-of-sequence token behind each text.",
    "max_completion_length": "Cut off the ends of completions, by `truncate.max_completion_length`.",
    "max_length": "Cut off to fit a row, by `truncate.max_length`.",
    "max_prompt_length": "Cut off the beginnings of prompts, by `truncate.max_prompt_length`.",
    "overlap": "Repeated at the head of a piece, for context; never trained there.",
    "repeats": "Further copies of examples, by `repeat` or `weight`.",
    "special": "Tokens that the tokenizer adds by itself.",
    "untrained_piece": "Pieces of split examples in which nothing would be trained.",
}
LOSSES = {
    "cut_empty": "pairs that lose a completion",
    "cut_equal": "pairs that differ no more when cut",
    "cut_untrained": "examples cut before anything trained",
    "duplicate": "examples that were there before",
    "equal": "pairs of equal completions",
    "max_completion_length": "ends of long completions",
    "max_length": "what is beyond the row",
    "max_prompt_length": "beginnings of long prompts",
    "max_tokens": "examples too long for the filter",
    "min_tokens": "examples too short for the filter",
    "not_sampled": "examples that the weights leave out",
    "overlong": "examples longer than a row",
    "untrained": "examples without anything to train",
    "untrained_piece": "pieces without anything to train",
}
"""Whose tokens are lost by a reason, within a sentence."""
OWN = "A reason of your own reader."


def reasons_of(total: SourceLedger) -> dict[str, str]:
    """The words that occur in an account, and what each means."""
    words = [
        *total.rows_rejected,
        *total.rows_filtered,
        *total.examples_skipped,
        *total.examples_dropped,
        *total.tokens_created,
        *total.tokens_truncated,
        *total.tokens_dropped,
    ]
    return {word: REASONS.get(word, OWN) for word in dict.fromkeys(words)}
