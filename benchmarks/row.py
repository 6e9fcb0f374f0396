"""What a row of the race track is: which work is raced, and how many times as fast as each peer ours is to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Settings:
    """What every side of every row is told."""

    base: str = "minilm"
    task: str = "sst2"
    """as for `peftlab train`: a short name, a folder or a file"""
    threads: int = 2
    precision: Literal["auto", "fp32", "bf16", "int16"] = "auto"
    """ours; auto: as `peftlab train` has it. The peer at its best has bf16 where that pays, unless this is fp32"""
    compile: bool = False
    """whether the peer at its best is compiled"""
    quick: bool = False
    """a short run: too short for a verdict, long enough to see that something became slow"""
    rounds: int | None = None
    """the most of a row; None: as many as it has"""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    module: str
    """of `benchmarks.rows`, whose `build` makes a contestant"""
    about: str
    goal_default: float
    """the least ratio to the peer as it comes; above 1 ours is better"""
    goal_best: float | None
    """to the peer at its best; None: that one does not race"""
    asked: Mapping[str, Any] = field(default_factory=dict)
    """what its contestants are told besides the settings"""
    quick: Mapping[str, Any] = field(default_factory=dict)
    """what is asked instead in a short run"""
    points: tuple[Mapping[str, Any], ...] = ({},)
    """what is raced one after the other; that with the lowest ratio is the row's"""
    rounds: int = 3
    """in each every side takes a turn"""
    unit: Literal["seconds", "bytes"] = "seconds"
    """of the figures: bytes are those of the peak above the loaded model"""
    fresh: bool = False
    """whether each turn is a new process"""

    @property
    def sides(self) -> tuple[str, ...]:
        """Who races."""
        return ("ours", "default") if self.goal_best is None else ("ours", "default", "best")

    def told(self, point: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
        """What the contestants of a point are told."""
        return {**self.asked, **point, **(self.quick if settings.quick else {})}

    def turns(self, settings: Settings) -> int:
        """How many rounds there are; a short run has a third of them, but not fewer than three."""
        most = max(3, self.rounds // 3) if settings.quick else self.rounds
        return min(self.rounds, most, settings.rounds or self.rounds)
