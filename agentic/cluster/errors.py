"""What the API server, or the way to it, can refuse.

    TransientError
    ├── ApiUnavailableError      no answer, 429 or 5xx, for longer than we are willing to retry
    ├── ConflictError            somebody changed the object meanwhile: read it and decide again
    ├── QuotaExceededError       the namespace's quota has no room at the moment
    ├── WatchExpiredError        410: the place in the event stream is gone; the watcher lists again by itself
    ├── WaitTimeoutError         what was waited for did not come about in time
    ├── ObjectEndingError        an object of that name is on its way out
    ├── RayClusterLostError      a RayCluster went away, or what may pass has kept it from starting for too long
    └── ExecStreamLostError      the stream of a command broke, or its container did, before the command's end was known
    PermanentError
    ├── NotFoundError            there is no such object
    ├── AlreadyExistsError       there is one of that name
    ├── CredentialsError         no usable credentials, or they were refused (401)
    ├── ForbiddenError           the account lacks a right; names account, verb and resource
    ├── AdmissionRefusedError    a webhook or policy refused the object
    ├── InvalidObjectError       the API server's validation refused the object
    ├── ForeignObjectError       an object of that name is there, and not ours to change
    ├── OtherRunError            an object of that name belongs to another run
    ├── StorageMisfitError       volumes and nodes, or two settings, that do not go together
    └── RayClusterError          a RayCluster cannot start as it is asked for; names the trouble

`error_of` is the one place that turns an answer into one of them. Every message is one line.
"""

import re
from typing import Any

from agentic.errors import PermanentError, TransientError

Message = dict[str, Any]

ACCOUNT = re.compile(r'User "(?P<account>[^"]+)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]+)"')
"""How the API server's authorizer words a refusal."""

QUOTA = re.compile(r"exceeded quota|quota exceeded", re.IGNORECASE)
ADMISSION = re.compile(
    r"admission webhook|ValidatingAdmissionPolicy|violates PodSecurity|denied the request|admission plugin"
)
LONGEST_REASON = 400
"""Characters of the server's own words that a message repeats."""


class ApiUnavailableError(TransientError):
    """The API server gave no usable answer."""


class ConflictError(TransientError):
    """The object changed since it was read, or another field manager owns the field."""


class QuotaExceededError(TransientError):
    """The namespace's quota is used up."""


class WatchExpiredError(TransientError):
    """The resource version to watch from is too old."""


class WaitTimeoutError(TransientError):
    """Something did not come about in time."""


class ObjectEndingError(TransientError):
    """An object of that name is being deleted and has to be gone first."""


class RayClusterLostError(TransientError):
    """A RayCluster that went away, or that has not started yet."""


class ExecStreamLostError(TransientError):
    """A command's stream ended without its exit code."""


class NotFoundError(PermanentError):
    """No such object."""


class AlreadyExistsError(PermanentError):
    """An object of that name exists."""


class CredentialsError(PermanentError):
    """Who we are could not be shown."""


class ForbiddenError(PermanentError):
    """The account lacks a right."""


class AdmissionRefusedError(PermanentError):
    """A webhook or a policy of the cluster refused the object."""


class InvalidObjectError(PermanentError):
    """The API server's own validation refused the object."""


class ForeignObjectError(PermanentError):
    """Somebody else made an object of that name."""


class OtherRunError(PermanentError):
    """An object of that name belongs to another run."""


class StorageMisfitError(PermanentError):
    """Claims that the run's pods cannot use."""


class RayClusterError(PermanentError):
    """A RayCluster that cannot start without a change."""


type ApiError = TransientError | PermanentError


def error_of(status: int, body: Message, what: str) -> ApiError:
    """The error for an answer with this HTTP status. `what` names the request, such as `create pods x in default`."""
    reason, said = str(body.get("reason", "")), one_line(str(body.get("message", "")))
    if status == 401:
        return CredentialsError(f"{what}: the credentials were refused: log in again or renew the token; {said}")
    if status == 403:
        return _of_forbidden(said, what)
    if status == 404:
        return NotFoundError(f"{what}: {said or 'not found'}")
    if status == 409:
        return _of_conflict(reason, said, what)
    if status == 410:
        return WatchExpiredError(f"{what}: {said or 'too old resource version'}")
    if status == 429 or status >= 500:
        return _of_unavailable(status, said, what)
    if ADMISSION.search(said):
        return AdmissionRefusedError(f"{what}: refused by the cluster's admission: {said}")
    return InvalidObjectError(f"{what}: refused as invalid ({status}): {said}")


def _of_forbidden(said: str, what: str) -> ApiError:
    if QUOTA.search(said):
        return QuotaExceededError(f"{what}: {said}; wait until others end, ask for less, or raise the quota")
    named = ACCOUNT.search(said)
    if named is not None:
        return ForbiddenError(
            f"{what}: {named['account']} may not {named['verb']} {named['resource']}: add it to the account's Role"
        )
    if ADMISSION.search(said) or "forbidden: " in said:
        return AdmissionRefusedError(f"{what}: refused by the cluster's admission: {said}")
    return ForbiddenError(f"{what}: the account lacks the right: {said}")


def _of_conflict(reason: str, said: str, what: str) -> ApiError:
    if reason == "AlreadyExists":
        return AlreadyExistsError(f"{what}: {said or 'exists already'}")
    return ConflictError(f"{what}: {said or 'changed meanwhile'}")


def _of_unavailable(status: int, said: str, what: str) -> ApiError:
    if "failed calling webhook" in said:
        return ApiUnavailableError(f"{what}: a webhook of the cluster does not answer ({status}): {said}")
    return ApiUnavailableError(f"{what}: the API server answered {status}: {said or 'no reason given'}")


def one_line(text: str) -> str:
    """A server's words fit for the middle of a message."""
    words = " ".join(text.split())
    return words if len(words) <= LONGEST_REASON else f"{words[:LONGEST_REASON]}..."
