"""Arithmetic of leases: when they end, when to renew, and whose owner is dead. Pure; times are in seconds.

Two leases bound a sandbox's life. The owner's is a Job without pods whose deadline the living owner pushes on; when
nobody does, the cluster removes it and all that belongs to it. The sandbox's own is its pod's deadline, or the
shutdownTime of the controller that made it. Both are longer than a trial may take.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

MISSED_RENEWALS = 3
"""After so many an owner is taken for dead."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Until when something lives."""

    seconds: float
    """Its length, from each renewal."""
    expires: float

    def is_due(self, now: float) -> bool:
        """Whether half of it is gone, so that one failed renewal is no loss."""
        return self.expires - now < self.seconds / 2

    def renewed(self, now: float) -> "Lease":
        """Never shorter than it was."""
        return Lease(self.seconds, max(self.expires, now + self.seconds))


def take_lease(seconds: float, now: float) -> Lease:
    return Lease(seconds, now + seconds)


def deadline_seconds(started: float, now: float, lease_seconds: float) -> int:
    """A Job's `activeDeadlineSeconds`, which count from its start, for a lease that begins anew."""
    return int(max(now - started, 0) + lease_seconds)


def is_owner_dead(renewed_at: float | None, renew_seconds: float, now: float) -> bool:
    """Whether an owner has stopped renewing. One whose time cannot be read is dead."""
    return renewed_at is None or now - renewed_at > MISSED_RENEWALS * renew_seconds


def rfc3339(seconds: float) -> str:
    """A time as the API server writes it, rounded up so that a lease is never shorter than asked."""
    return datetime.fromtimestamp(-(-seconds // 1), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str | None) -> float | None:
    """The API server's way of writing a time, in unix seconds; None when it is none."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
