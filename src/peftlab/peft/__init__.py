"""The methods, one short file each, and the table that names them."""

from peftlab.peft.adapter import Adapter
from peftlab.peft.baselines import BitFit, Full, Head, SlowStart
from peftlab.peft.lora import LoRA
from peftlab.peft.method import Method
from peftlab.peft.p_tuning import PTuning
from peftlab.peft.prefix import Prefix
from peftlab.peft.prompt import Prompt

METHODS: dict[str, type[Method]] = {
    method.name: method for method in (LoRA, Adapter, Prompt, PTuning, Prefix, Full, Head, BitFit, SlowStart)
}
__all__ = ["METHODS", "Adapter", "BitFit", "Full", "Head", "LoRA", "Method", "PTuning", "Prefix", "Prompt", "SlowStart"]
