"""The demo's data, tokenizer and configurations."""
