"""Time limits and network of a job on Ray, created by `RayExecutor.create_settings` with Horovod's argument names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from paceline.errors import InvalidArgumentError
from paceline.settings.table import RAY, SETTINGS, default


@dataclass(frozen=True, kw_only=True)
class RaySettings:
    """Time limits in seconds, and the network. Defaults and checks are those of `paceline.settings.table`.

    Raises:
        InvalidArgumentError: A value is out of range, or `nics` names several networks.
    """

    timeout_s: float = SETTINGS["timeout_s"].default_of(RAY)
    """Time for actors to start and answer, and for ranks to find each other."""
    placement_group_timeout_s: float = default("placement_group_timeout_s")
    """Time for Ray to find room for the actors."""
    grace_s: float = default("grace_s")
    """Time after a failure for the other ranks to report what they saw."""
    nics: Iterable[str] | None = default("nics")
    """The network that all nodes have, if they have several: an interface (eth0) or a subnet (10.0.0.0/24)."""

    def __post_init__(self) -> None:
        """Check the values."""
        for entry in fields(self):
            value = getattr(self, entry.name)
            if value is not None or entry.default is not None:
                object.__setattr__(self, entry.name, SETTINGS[entry.name].check(value, place=RAY))

    @property
    def interface(self) -> str | None:
        """The network's name; None for Ray's own network."""
        return next(iter(self.nics), None) if self.nics is not None else None


def checked(settings: RaySettings | None) -> RaySettings:
    """Return the caller's settings, or the defaults. Raises InvalidArgumentError for another type."""
    if settings is not None and not isinstance(settings, RaySettings):
        raise InvalidArgumentError(
            f"settings: {settings!r:.80} is not a RaySettings", remedy="RayExecutor.create_settings()"
        )
    return settings if settings is not None else RaySettings()


def create_settings(
    timeout_s: float = RaySettings.timeout_s,
    *,
    ssh_identity_file: str | None = None,
    ssh_str: str | None = None,
    placement_group_timeout_s: float = RaySettings.placement_group_timeout_s,
    nics: Iterable[str] | None = None,
    grace_s: float = RaySettings.grace_s,
) -> RaySettings:
    """Create settings, with Horovod's names for the arguments.

    Args:
        timeout_s: Seconds for actors to start and answer, and for ranks to find each other.
        ssh_identity_file: Must be None: Ray starts its nodes itself, and nothing uses ssh.
        ssh_str: Must be None, for the same reason.
        placement_group_timeout_s: Seconds for Ray to find room for the actors.
        nics: The network that all nodes have, if they have several: an interface (eth0) or a subnet (10.0.0.0/24).
        grace_s: Seconds after a failure for the other ranks to report what they saw.

    Returns:
        The settings.

    Raises:
        InvalidArgumentError: A value is out of range, or has no effect.

    Example:
        >>> RayExecutor.create_settings(timeout_s=60).timeout_s  # doctest: +SKIP
        60
    """
    for name, value in (("ssh_identity_file", ssh_identity_file), ("ssh_str", ssh_str)):
        if value is not None:
            raise InvalidArgumentError(f"{name}: has no effect, because nothing uses ssh", remedy=f"drop {name}")
    return RaySettings(
        timeout_s=timeout_s, placement_group_timeout_s=placement_group_timeout_s, nics=nics, grace_s=grace_s
    )
