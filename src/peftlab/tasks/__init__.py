"""What a user solves, named by shape: loss and metric around a head."""

TASKS = {
    "classify": "one label for a text or a pair of texts (N→1): sentiment, NLI, topic",
    "translate": "one text into another (N→M), by a model that writes",
}
"""name → one line for `peftlab ls`"""
