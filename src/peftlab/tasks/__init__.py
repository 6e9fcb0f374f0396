"""What a user solves, named by shape: loss and metric around a head."""

TASKS = {
    "classify": "one label for a text or a pair of texts (N→1): sentiment, NLI, topic",
    "images": "one label for an image (N→1): digits, fashion-mnist, a folder of class folders",
    "tag": "one tag for each word (N→N): parts of speech, named entities",
    "parse": "for each word its head and its relation to it (N→path), a tree",
    "translate": "one text into another (N→M), by a model that writes",
    "masked_tokens": "the tokens that were hidden in a text (N→N): pretrains a base as BERT",
    "replaced_tokens": "whether each token was replaced (N→N): pretrains a base as ELECTRA, with a generator",
    "language_model": "how a text goes on (N→next token), by a model that sees what is before it",
}
"""name → one line for `peftlab ls`"""
