"""The grid of methods × tasks × seeds: plan, run, store, statistics."""
