"""What a run trains and leaves in its folder: an adapter, a base, or a model of one's own, and how it is had again.

adapter/   an adapter; where the method trains the base itself, its checkpoint, and in it the task's head as head/
model/     the same of a model of one's own, which had no base
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from peftlab.errors import UserError
from peftlab.models.base import Base, load
from peftlab.models.heads import Labels
from peftlab.peft import Head
from peftlab.peft.attach import attach, freeze
from peftlab.peft.formats import load_adapter, save_adapter
from peftlab.peft.method import Method
from peftlab.train.config import Config, read_config_file
from peftlab.train.precision import pick_device

ADAPTER = "mine"


def adapt(base: Base, method: Method, head: Labels | None = None) -> Base:
    """Attach a method to a base, on the device that computes, and let nothing else train."""
    base.model.to(pick_device())
    method.begin(base.model)
    attach(base.model, ADAPTER, method, head=head)
    freeze(base.model)
    if not any(parameter.requires_grad for parameter in base.model.parameters()):
        raise UserError(f"{method.name} trains nothing of a model without a head: choose another method, such as lora")
    return base


def trained_folder(folder: Path, config: Config) -> Path:
    """Where in a run's folder what it trained is."""
    return folder / ("adapter" if config.model is None else "model")


def save_trained(base: Base, folder: Path) -> list[Path]:
    """Write what was trained into its folder; gives the folders that it wrote."""
    model = base.model.cpu()
    attached = model.adapters.get(ADAPTER)
    if attached is not None and not attached.method.trains_base:
        save_adapter(base, ADAPTER, folder)
        return [folder]
    base.save(folder)
    if attached is not None and attached.head is not None:
        saved = replace(load(folder), name="..")  # beside it, wherever the run's folder goes
        attach(saved.model, ADAPTER, Head(), head=attached.head)
        for key, addition in model.additions(ADAPTER).items():
            saved.model.additions(ADAPTER)[key].load_state_dict(addition.state_dict())
        save_adapter(saved, ADAPTER, folder / "head")
    return [folder]


def open_run(folder: Path) -> tuple[Base, Config]:
    """A finished run's base as it was trained, its adapter or head active, ready to answer."""
    if not (folder / "result.json").is_file():
        raise UserError(f"{folder} is not a finished run: it has no result.json")
    config = read_config_file(folder / "config.toml")
    trained = trained_folder(folder, config)
    if not config.build_method().trains_base:
        base = load(config.base).shallow(config.layers)
        load_adapter(base, trained, name=ADAPTER)
        return base, config
    base = load(trained)
    if (trained / "head").is_dir():
        load_adapter(base, trained / "head", name=ADAPTER)
    return base, config
