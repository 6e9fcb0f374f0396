"""From names and files to batches: sources, tokenizer, batch."""
