"""The sweep behind the methods' default learning rates: its settings, what runs it, and what came out."""
