"""The rig that a GPU run is predicted on: a card, and the PyTorch whose allocator runs there."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from importlib.metadata import version as installed_version

from memfit.allocator.addresses import POLICIES
from memfit.allocator.replay import replay_on_cuda
from memfit.allocator.settings import Settings, parse_settings, settings_from_environment
from memfit.allocator.steady import repeat_until_steady
from memfit.allocator.version import TorchVersion
from memfit.devices.context import Estimate, context_bytes, growth_bytes
from memfit.devices.detect import find, gpus
from memfit.errors import BadInput
from memfit.records.device import Device
from memfit.records.prediction import Outside
from memfit.records.replay import Replay
from memfit.records.timeline import Timeline

_TIES_BROKEN_BY_AGE = TorchVersion(2, 13)
"""From here on the older of two equal free blocks is taken (pytorch#183591), before that the one
with the lower address, which the driver decides."""

_ENVIRONMENT = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Where PyTorch looks for settings, in its order; the first that is set counts alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rig:
    """A card, what of it may be used, and the allocator's version and settings."""

    card: Device
    budget_bytes: int
    version: TorchVersion
    settings: Settings
    alloc_conf: str
    """The text that ``settings`` was read from."""

    @property
    def context(self) -> Estimate:
        """The CUDA context of the process."""
        return context_bytes(self.card)

    @property
    def growth(self) -> Estimate:
        """What the driver takes when kernels run for the first time."""
        return growth_bytes()

    @property
    def outside(self) -> Outside:
        """What is expected beside the allocator."""
        return Outside(
            context_bytes=self.context.num_bytes, growth_bytes=self.growth.num_bytes, nccl_bytes=0
        )

    @property
    def expected_room_bytes(self) -> int:
        """What the budget is expected to leave to the allocator."""
        return self._room(self.outside.total_bytes)

    @property
    def most_room_bytes(self) -> int:
        """What the budget leaves to the allocator when all beside it is as small as it may be."""
        return self._room(self.context.low + self.growth.low)

    def _room(self, outside_bytes: int) -> int:
        return max(0, min(self.budget_bytes - outside_bytes, self._limit_bytes))

    @property
    def _limit_bytes(self) -> int:
        """What the process may reserve by its memory fraction."""
        return round(self.settings.per_process_memory_fraction * self.card.total_bytes)

    @property
    def collects_garbage(self) -> bool:
        """Whether the allocator gives segments back before the card is full."""
        settings = self.settings
        return settings.garbage_collection_threshold > 0 and (
            settings.per_process_memory_fraction < 1
        )

    @property
    def other_addresses(self) -> tuple[str, ...]:
        """The policies that segments' addresses might follow instead, where it matters."""
        return POLICIES[1:] if self.version < _TIES_BROKEN_BY_AGE else ()

    def replay(
        self, timeline: Timeline, *, room_bytes: int | None = None, addresses: str = POLICIES[0]
    ) -> Replay:
        """What this rig's allocator makes of a Timeline, with unlimited room if none is given."""
        return replay_on_cuda(
            timeline,
            version=self.version,
            settings=self.unlimited if room_bytes is None else self.settings,
            capacity_bytes=room_bytes,
            addresses=addresses,
            total_bytes=self.card.total_bytes,
        )

    def repeat(self, timeline: Timeline) -> tuple[Timeline, bool]:
        """A run with its last step repeated until this rig's allocator comes back to a state."""
        return repeat_until_steady(timeline, version=self.version, settings=self.unlimited)

    @property
    def unlimited(self) -> Settings:
        """The settings of an allocator that may take all it wants."""
        return replace(self.settings, per_process_memory_fraction=1.0)

    def with_fraction(self, fraction: float) -> Rig:
        """The rig when the process may reserve only this share of the card.

        The budget shrinks to what then can be used at most, so that a run fits it when it
        reserves no more than it may.
        """
        rig = replace(self, settings=replace(self.settings, per_process_memory_fraction=fraction))
        most = rig._limit_bytes + rig.context.high + rig.growth.high
        return replace(rig, budget_bytes=min(rig.budget_bytes, most))


def rig_of(
    device: str,
    *,
    budget_bytes: int | None = None,
    torch_version: str | None = None,
    alloc_conf: str | None = None,
) -> Rig:
    """The rig that the arguments of a prediction mean.

    Args:
        device: a card's name; ``cuda`` for the one in this machine.
        budget_bytes: what may be used of it; all when left out.
        torch_version: the PyTorch whose rules count; the installed one when left out.
        alloc_conf: the allocator's settings; the environment's when left out.

    Raises:
        UnknownName: no card is called so.
        BadInput: no such version, settings that PyTorch would refuse, or a budget above the card.
    """
    card = card_of(device)
    if budget_bytes is not None and budget_bytes > card.total_bytes:
        raise BadInput(
            f"a budget of {budget_bytes:,} bytes is more than the {card.total_bytes:,} bytes that "
            f"CUDA reports for the {card.name}: leave it out to use the whole card"
        )
    version = TorchVersion.parse(torch_version or installed_version("torch"))
    conf, settings = _alloc_conf(alloc_conf, version)
    rig = Rig(
        card=card,
        budget_bytes=card.total_bytes if budget_bytes is None else budget_bytes,
        version=version,
        settings=settings,
        alloc_conf=conf,
    )
    return rig.with_fraction(settings.per_process_memory_fraction)


def card_of(name: str) -> Device:
    """The GPU that ``name`` means: of this machine, else in the catalog.

    Raises:
        UnknownName, BadInput: no card, or more than one, is meant.
    """
    if name.lower() in ("cuda", "cuda:0"):
        here = gpus()
        if not here:
            raise BadInput(
                f"{name!r} means the GPU of this machine, and none is seen here: name a card, as "
                "in rtx-4090 (`memfit gpus` lists them)"
            )
        return here[0]
    return find(name)


def _alloc_conf(asked: str | None, version: TorchVersion) -> tuple[str, Settings]:
    """The settings that are asked for, else the environment's, and the text they stand in."""
    if asked is not None:
        return asked, parse_settings(asked, version)
    settings = settings_from_environment(os.environ, version)
    texts = (os.environ[name] for name in _ENVIRONMENT if name in os.environ)
    return (next(texts, "") if settings != Settings() else ""), settings
