"""The methods, one short file each, and the table that names them."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from peftlab.errors import UserError, unknown
from peftlab.peft.adapter import Adapter
from peftlab.peft.baselines import BitFit, Full, Head, Scratch, SlowStart
from peftlab.peft.lora import LoRA
from peftlab.peft.method import Method
from peftlab.peft.p_tuning import PTuning
from peftlab.peft.prefix import Prefix
from peftlab.peft.prompt import Prompt

METHODS: dict[str, type[Method]] = {
    method.name: method for method in (LoRA, Adapter, Prompt, PTuning, Prefix, Full, Head, BitFit, Scratch, SlowStart)
}


def make_method(settings: Mapping[str, Any], where: str) -> Method:
    """A method from its `name` and settings, as they stand in a file; `where` names it for a message."""
    rest = dict(settings)
    name = str(rest.pop("name", ""))
    if name not in METHODS:
        raise unknown(f"method in {where}", name, METHODS)
    known = [field.name for field in fields(METHODS[name])]
    for key in rest:
        if key not in known:
            raise unknown(f"setting of {name} in {where}", key, known)
    frozen = {key: tuple(value) if isinstance(value, list) else value for key, value in rest.items()}
    try:
        return METHODS[name](**frozen)
    except (TypeError, AttributeError) as error:
        given = ", ".join(f"{key} = {value!r}" for key, value in rest.items())
        raise UserError(f"{name} in {where} can't have {given}: {error}") from None


__all__ = [
    "METHODS",
    "Adapter",
    "BitFit",
    "Full",
    "Head",
    "LoRA",
    "Method",
    "PTuning",
    "Prefix",
    "Prompt",
    "Scratch",
    "SlowStart",
    "make_method",
]
