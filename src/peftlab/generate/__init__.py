"""How a text is found that a model thinks likely: greedy search, sampling, beam search."""
