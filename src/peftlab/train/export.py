"""A finished run goes elsewhere: as an adapter for stock `peft`, or merged into a model of its own."""

from __future__ import annotations

from pathlib import Path

from peftlab.errors import UserError, unknown
from peftlab.models.base import Base
from peftlab.models.heads import Classifier
from peftlab.peft.attach import merge, unmergeable
from peftlab.peft.formats import save_adapter, why_only_ours
from peftlab.train.artefact import ADAPTER, open_run
from peftlab.train.config import Config


def export_run(folder: Path, out: Path, to: str) -> None:
    """Write a run's adapter for stock `peft`, or its base with the adapter merged into it and its head.

    A head that pools the mean is written as `sentence-transformers` reads it, another as `transformers` does.
    """
    if to not in ("peft", "merged"):
        raise unknown("target of an export", to, ("peft", "merged"))
    base, config = open_run(folder)
    if config.model is not None:
        raise UserError(f"{folder} has a model of its own and no base: {folder / 'model'} is what peftlab.load reads")
    if ADAPTER not in base.model.adapters:
        raise UserError(f"{folder} trained the base itself: {folder / 'adapter'} is what peftlab.load reads")
    why = why_not_exported(base, config)
    if (reason := why.pop(to)) is not None:
        ((other, obstacle),) = why.items()
        instead = f"use --to {other}" if obstacle is None else f"load {folder / 'adapter'} with peftlab.load_adapter"
        raise UserError(f"{folder} can't be exported with --to {to}: {reason}; as it is, {instead}")
    if to == "peft":
        save_adapter(base, ADAPTER, out, to="peft")
    else:
        if config.build_method().kinds:
            merge(base.model, ADAPTER)
        if base.model.head_address is None:
            base.save(out)
        else:
            longest = None if base.room is None else min(config.task.max_length, base.room)
            base.save(out, head=ADAPTER, max_length=longest)


def why_not_exported(base: Base, config: Config) -> dict[str, str | None]:
    """Why a run can't go to each target; None if it can."""
    method, attached = config.build_method(), base.model.adapters[ADAPTER]
    merged = None
    if unmergeable(base.model, ADAPTER):
        merged = f"{method.name} is no change of the base's weights"
    elif not isinstance(attached.head, Classifier | None):
        merged = f"a {attached.head.kind}'s head is kept in our own format"
    nothing = f"{method.name} puts nothing into the base that an adapter could hold"
    return {
        "peft": why_only_ours(base, attached) if method.kinds else nothing,
        "merged": merged,
    }
