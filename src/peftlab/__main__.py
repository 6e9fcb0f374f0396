"""`python -m peftlab` is `peftlab`."""

from peftlab.cli import main

main()
