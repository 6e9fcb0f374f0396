"""From a configuration to a trained adapter in a folder."""
