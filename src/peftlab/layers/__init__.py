"""The parts of a Transformer, each readable alone."""
