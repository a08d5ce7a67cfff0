"""What both halves know of models: facts about their size and limits, and what they answer to prompts."""
