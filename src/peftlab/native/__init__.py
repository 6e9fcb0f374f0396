"""Kernels in C for what torch does slowly on a processor: products of a few rows, attention over short texts, dropout.

They are built when the package is installed, where there is a C compiler (`hatch_build.py`), and used where the
processor has AVX2 or AVX-512. Elsewhere, and with `PEFTLAB_NATIVE=0`, torch computes the same: each file of `layers/`
that has a kernel has torch's way beside it. The kernels share torch's own threads.

A sum in another order is rounded otherwise. So a model that is called computes with torch, to the bit as the published
ones do, and the kernels are for work: training, predicting and writing turn them on.

    with native.computing():
        model(batch)

`fits` says whether tensors are to be given to them: turned on, single precision, on a processor, not compiled. What is
called here knows nothing of gradients, and gives new tensors unless it says otherwise.

A file of Python calls the C file of its name; `library` finds and loads what was built from them (`building`), and
`switch` turns it on.

    python -m pytest tests/native
"""

from peftlab.native.attention import attend, attend_back
from peftlab.native.choose import continuations, likeliest, log_softmax
from peftlab.native.library import INTEGERS, LIBRARY, NAME, TALL
from peftlab.native.mixed import Changes, add_changes
from peftlab.native.norm import join, join_affine, join_back
from peftlab.native.one_query import ask_tokens, ask_tokens_back
from peftlab.native.pointwise import apply_kept, draw_kept, gelu, gelu_back
from peftlab.native.product import (
    FEW,
    UNPACKED,
    add_linear,
    add_linear_input,
    address,
    forget,
    linear,
    linear_gelu,
    linear_input,
    linear_weight,
    packed,
)
from peftlab.native.sublayer import Asked, Dropped, attended, attended_back, fed_forward, fed_forward_back
from peftlab.native.switch import MANY, WIDE, computing, fits, keeps, reads, takes

__all__ = [
    "FEW",
    "INTEGERS",
    "LIBRARY",
    "MANY",
    "NAME",
    "TALL",
    "UNPACKED",
    "WIDE",
    "Asked",
    "Changes",
    "Dropped",
    "add_changes",
    "add_linear",
    "add_linear_input",
    "address",
    "apply_kept",
    "ask_tokens",
    "ask_tokens_back",
    "attend",
    "attend_back",
    "attended",
    "attended_back",
    "computing",
    "continuations",
    "draw_kept",
    "fed_forward",
    "fed_forward_back",
    "fits",
    "forget",
    "gelu",
    "gelu_back",
    "join",
    "join_affine",
    "join_back",
    "keeps",
    "likeliest",
    "linear",
    "linear_gelu",
    "linear_input",
    "linear_weight",
    "log_softmax",
    "packed",
    "reads",
    "takes",
]
