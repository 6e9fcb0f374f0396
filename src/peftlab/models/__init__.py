"""The machines made of the parts, and the table that maps published checkpoints to them."""
