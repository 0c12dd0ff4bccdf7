"""What the state of a claim means, for both kinds of claim. Pure.

Words and conditions are those of the controllers' sources: OpenKruise Agents completes a claim whether it got its
sandbox or not, so `Completed` alone means nothing; agent-sandbox forwards the Ready condition of the sandbox that it
bound. A sandbox counts only when it names its claim itself, and exactly one has to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from agentic.cluster.errors import one_line
from agentic.cluster.resources import JsonObject, name_of, uid_of
from agentic.sandbox.errors import SandboxStartError


class ClaimState(Enum):
    """Three kinds of verdict."""

    WAITING = "waiting"
    BOUND = "bound"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ClaimVerdict:
    """One look at a claim."""

    state: ClaimState
    reason: str = ""
    sandbox: str = ""
    """Name of the Sandbox, where the claim's status names it."""
    may_pass: bool = False
    """Whether another claim may fare better soon."""


DEAD_PHASES = ("Failed", "Succeeded", "Terminating")
"""Of a Sandbox of OpenKruise Agents."""
TAKER_ANNOTATION = "agents.kruise.io/owner"
"""Uid of the claim that took a Sandbox, whatever the API group is called."""
SET_UNSEEN = "SandboxSetNotFound"
"""Reason of a completed claim whose set was deleted, or is so new that the controller's copy of the sets is behind its
copy of the claims: it does not look again."""
GONE = ClaimVerdict(ClaimState.FAILED, "its claim was deleted")


def judge_kruise_claim(claim: JsonObject | None) -> ClaimVerdict:
    """A SandboxClaim of OpenKruise Agents for one sandbox."""
    if claim is None or claim["metadata"].get("deletionTimestamp"):
        return GONE
    status = claim.get("status", {})
    message = one_line(str(status.get("message", "")))
    if status.get("phase") != "Completed":
        return ClaimVerdict(ClaimState.WAITING, message or "the controller has not answered its claim yet")
    if int(status.get("claimedReplicas", 0)) >= 1:
        return ClaimVerdict(ClaimState.BOUND)
    reason = f"its claim got no sandbox ({message or 'no reason given'})"
    may_pass = condition(status, "Completed").get("reason") == SET_UNSEEN
    return ClaimVerdict(ClaimState.FAILED, reason, may_pass=may_pass)


FINAL_REASONS = {
    "ClaimExpired": "its claim has expired",
    "SandboxExpired": "its sandbox has expired",
    "InvalidMetadata": "the controller refuses its labels",
    "EnvVarsInjectionRejected": "the controller refuses its environment",
    "VolumeClaimTemplatesError": "the controller refuses its volumes",
}
"""Of a Ready condition that is False for good; others, such as WarmPoolNotFound, may pass."""


def judge_agent_claim(claim: JsonObject | None) -> ClaimVerdict:
    """A SandboxClaim of agent-sandbox, v1beta1."""
    if claim is None or claim["metadata"].get("deletionTimestamp"):
        return GONE
    status = claim.get("status", {})
    finished, ready = condition(status, "Finished"), condition(status, "Ready")
    if finished.get("status") == "True":
        return ClaimVerdict(ClaimState.FAILED, _told("its pod has ended", finished))
    reason = str(ready.get("reason", ""))
    if ready.get("status") == "False" and reason in FINAL_REASONS:
        return ClaimVerdict(ClaimState.FAILED, _told(FINAL_REASONS[reason], ready))
    sandbox = str(status.get("sandbox", {}).get("name", ""))
    if ready.get("status") == "True" and sandbox:
        return ClaimVerdict(ClaimState.BOUND, sandbox=sandbox)
    return ClaimVerdict(
        ClaimState.WAITING, _told("no sandbox is ready", ready) if ready else "its claim is not answered"
    )


def is_pool_missing(claim: JsonObject | None) -> bool:
    """Whether a claim of agent-sandbox waits for a pool that is not there (any more)."""
    reason = condition((claim or {}).get("status", {}), "Ready").get("reason")
    return reason in ("WarmPoolNotFound", "TemplateNotFound")


def judge_in_place_update(sandbox: JsonObject, image: str) -> ClaimVerdict:
    """A claimed Sandbox of OpenKruise Agents that was asked to take an image."""
    status = sandbox.get("status", {})
    if status.get("phase") in DEAD_PHASES:
        words = one_line(str(status.get("message", "")))
        return ClaimVerdict(ClaimState.FAILED, f"its sandbox is {status['phase']}{f' ({words})' if words else ''}")
    update, ready = condition(status, "InplaceUpdate"), condition(status, "Ready")
    if update.get("reason") == "Failed":
        return ClaimVerdict(ClaimState.FAILED, _told(f"it did not take image {image} in place", update))
    if ready.get("reason") == "StartContainerFailed":
        return ClaimVerdict(ClaimState.FAILED, _told(f"image {image} does not start", ready))
    is_current = status.get("observedGeneration", 0) >= sandbox["metadata"].get("generation", 0)
    if ready.get("status") == "True" and is_current:
        return ClaimVerdict(ClaimState.BOUND)
    return ClaimVerdict(ClaimState.WAITING, _told("it takes its image", ready) if ready else "it takes its image")


def only_claimed(claim: JsonObject, sandboxes: Sequence[JsonObject]) -> JsonObject:
    """The one living Sandbox that says it is this claim's. Raises SandboxStartError when there is none, or more.

    One that failed is killed by the controller, which then takes another for the same claim; the first one is listed
    until its pod is gone."""
    sandboxes = [one for one in sandboxes if is_living(one) and is_taken_by(one, claim)]
    if len(sandboxes) != 1:
        names = ", ".join(sorted(name_of(one) for one in sandboxes)) or "none"
        raise SandboxStartError(
            f"claim {name_of(claim)} has {len(sandboxes)} sandboxes ({names}) but exactly one was claimed: none is used"
        )
    return sandboxes[0]


def is_living(sandbox: JsonObject) -> bool:
    phase = sandbox.get("status", {}).get("phase")
    return not sandbox["metadata"].get("deletionTimestamp") and phase not in DEAD_PHASES


def is_taken_by(sandbox: JsonObject, claim: JsonObject) -> bool:
    """Not by an earlier claim of the same name, where the controller says whose it is."""
    taker = (sandbox["metadata"].get("annotations") or {}).get(TAKER_ANNOTATION)
    return taker is None or taker == uid_of(claim)


def is_controlled_by(body: JsonObject, owner: JsonObject) -> bool:
    """Whether an object's controller is this very one."""
    references = body["metadata"].get("ownerReferences", [])
    return any(one.get("controller") and one.get("uid") == uid_of(owner) for one in references)


def condition(status: JsonObject, kind: str) -> JsonObject:
    conditions: list[JsonObject] = status.get("conditions", [])
    return next((one for one in conditions if one.get("type") == kind), {})


def _told(what: str, told: JsonObject) -> str:
    words = one_line(": ".join(str(told[key]) for key in ("reason", "message") if told.get(key)))
    return f"{what} ({words})" if words else what
