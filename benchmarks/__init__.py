"""Ratios against peers: both at their best settings, interleaved in one run on one machine."""
