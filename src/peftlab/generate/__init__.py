"""How a text is found that a model thinks likely: greedy search, sampling, beam search."""

from peftlab.generate.beam import Beam
from peftlab.generate.search import Greedy, Sample, Search, Written, stream, write

__all__ = ["Beam", "Greedy", "Sample", "Search", "Written", "stream", "write"]
