"""Time limits and network of a job on Ray: what Horovod's users make with `RayExecutor.create_settings`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from paceline.errors import InvalidArgumentError
from paceline.settings import kinds


@dataclass(frozen=True, kw_only=True)
class RaySettings:
    """Time limits in seconds, and the network.

    Raises:
        InvalidArgumentError: A value is out of range, or `nics` names several networks.
    """

    timeout_s: float = 300.0
    """Time for actors to start and answer, and for ranks to find each other."""
    placement_group_timeout_s: float = 100.0
    """Time for Ray to find room for them."""
    grace_s: float = 5.0
    """Time after a failure for the other ranks to report what they saw."""
    nics: Iterable[str] | None = None
    """The network that all nodes have, if they have several: an interface (eth0) or a network (10.0.0.0/24)."""

    def __post_init__(self) -> None:
        """Check the values."""
        for name in ("timeout_s", "placement_group_timeout_s", "grace_s"):
            try:
                object.__setattr__(self, name, kinds.SECONDS.check(getattr(self, name)))
            except InvalidArgumentError as error:
                raise error.at(name) from None
        if self.nics is not None:
            if not isinstance(self.nics, Iterable):
                raise InvalidArgumentError(f"nics: {self.nics!r:.80} is no list of networks; write ['10.0.0.0/24']")
            nics = [self.nics] if isinstance(self.nics, str) else list(self.nics)
            if len(nics) != 1:
                raise InvalidArgumentError(
                    f"nics: {nics!r:.80} names {len(nics)} networks; name the one that all nodes have"
                )
            object.__setattr__(self, "nics", tuple(nics))

    @property
    def interface(self) -> str | None:
        """The network's name; None for the one that Ray uses."""
        return next(iter(self.nics), None) if self.nics is not None else None


def checked(settings: RaySettings | None) -> RaySettings:
    """Return the caller's settings, or the defaults. Raises InvalidArgumentError for something else."""
    if settings is not None and not isinstance(settings, RaySettings):
        raise InvalidArgumentError(f"settings: {settings!r:.80} is none; RayExecutor.create_settings() makes them")
    return settings if settings is not None else RaySettings()


def create_settings(
    timeout_s: float = 300.0,
    *,
    ssh_identity_file: str | None = None,
    ssh_str: str | None = None,
    placement_group_timeout_s: float = 100.0,
    nics: Iterable[str] | None = None,
    grace_s: float = 5.0,
) -> RaySettings:
    """Make settings, with Horovod's names for the arguments.

    Args:
        timeout_s: Seconds for actors to start and answer, and for ranks to find each other.
        ssh_identity_file: Must be None: Ray has started its nodes itself, and nothing uses ssh.
        ssh_str: Must be None, for the same reason.
        placement_group_timeout_s: Seconds for Ray to find room.
        nics: The network that all nodes have, if they have several: an interface (eth0) or a network (10.0.0.0/24).
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
            raise InvalidArgumentError(f"{name}: has no effect, nothing here uses ssh; leave it out")
    return RaySettings(
        timeout_s=timeout_s, placement_group_timeout_s=placement_group_timeout_s, nics=nics, grace_s=grace_s
    )
