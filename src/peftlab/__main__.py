"""`python -m peftlab` is `peftlab`."""

from peftlab.cli import main

if __name__ == "__main__":  # a run of a comparison imports it, too
    main()
