"""Grades what an agent changed, in a sandbox that it never saw.

1. Every process of the agent is ended, and what it changed in the working folder is taken out (`collecting.py`).
2. The agent's sandbox is given back, and a fresh one from the same image takes its place. So nothing that lies outside
   the working folder comes along: no programs, packages, profiles, daemons, nor anything in `/tests` or `/logs`.
3. There, later history is removed (`history.py`), the changes are compared with the untouched files (`changes.py`),
   those to tests and their configuration are undone (`protection.py`), and the rest is applied.
4. The task's tests come last, run as the verifier's user, and what they wrote to `/logs/verifier` counts, read by
   Harbor's own parser.

A fresh sandbox that is lost is replaced, and only grading is done again. Changes that cannot be taken, tests that run
out of time, and tests that write no reward although they do on the untouched folder, are the agent's doing: 0, with the
reason in the report. All else that goes wrong raises, and is never a zero. What is measured
here (`report.py`) is apart from what the tests report.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, override, runtime_checkable

from harbor.models.task.verifier_mode import VerifierEnvironmentMode, resolve_task_verifier_mode
from harbor.models.trial.paths import EnvironmentPaths
from harbor.models.verifier.result import VerifierResult
from harbor.utils.env import resolve_env_vars
from harbor.utils.file_staging import selected_directory
from harbor.utils.scripts import quote_shell_arg
from harbor.verifier.verifier import (
    RewardFileEmptyError,
    RewardFileNotFoundError,
    Verifier,
    VerifierOutputParseError,
)

from agentic.rollout.errors import ChangesRefusedError, GradingSetupError
from agentic.rollout.grading.bringing import bring
from agentic.rollout.grading.changes import Change, compare, gone_paths, needed_paths
from agentic.rollout.grading.collecting import Runs, list_chosen, list_recent
from agentic.rollout.grading.history import forget_later_history
from agentic.rollout.grading.patch import make_patch
from agentic.rollout.grading.protection import undo
from agentic.rollout.grading.report import NAMED_PATHS, PATCH, GradingReport
from agentic.rollout.grading.tree import Limits, Listing
from agentic.sandbox.base import TIMEOUT_EXIT_CODE
from agentic.sandbox.errors import (
    SandboxExhaustedError,
    SandboxLostError,
    SandboxStartError,
    SandboxTransferError,
)
from agentic.tasks.grading_policy import GradingPolicy, read_policy

LOG_BYTES = 64 * 1024
"""What is kept of the tests' output: enough for the failures at its end."""

SPARE_SECONDS = 15.0
SPARE_SHARE = 0.2
"""What of the time for grading is left for everything but the tests: the lesser of the two."""

NOWHERE = Listing("/", {})
"""The working folder where no changes are brought."""

LEFT_RUNNING = (
    "the tests left processes running, any of which could have written the reward: end them in tests/test.sh, or say "
    "metadata.grading.may_leave_processes"
)
"""Why a resolved task earns nothing; the check of a task with its reference solution shows it too."""

PATIENCE_SECONDS = 0.5
"""How long processes that the tests ended last may take to be gone."""

_NO_REWARD = (RewardFileNotFoundError, RewardFileEmptyError, VerifierOutputParseError)
_RUN = """\
set -- {processes}
before=" $* "
left() {{
  for process in {processes}; do
    case "$before" in *" $process "*) continue ;; esac
    read -r line 2> /dev/null < "$process/stat" || continue
    case "${{line##*) }}" in Z*) ;; *) return 0 ;; esac
  done
  return 1
}}
({script}) > {log} 2>&1
for reward in {rewards} /; do [ -f "$reward" ] && break; done
[ "$reward" = / ] || content=$(head -c 65536 "$reward")
tail -c {log_bytes} {log} >&2
if left && sleep {patience} && left; then echo busy; else echo quiet; fi
[ "$reward" = / ] || printf '%s\n%s\n' "${{reward##*/}}" "$content"
"""


@runtime_checkable
class GradedEnvironment(Runs, Protocol):
    """A Harbor environment whose agent can be graded in a fresh sandbox."""

    @property
    def shares_processes(self) -> bool:
        """Whether processes of others are seen inside, so that it cannot be told what the tests left running."""

    async def end_commands(self) -> None:
        """See `Sandbox.end_commands`."""

    async def renew(self) -> None:
        """Give the agent's sandbox back and go on in an untouched one of the same image, limits and environment, which
        reaches no socket. May be repeated: then the one before is given back."""


class FreshVerifier(Verifier):  # type: ignore[misc]
    """For one trial; made by Harbor."""

    def __init__(self, *arguments: Any, grading_seconds: float, grading_retries: int = 2, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._ends = time.monotonic() + grading_seconds - min(SPARE_SECONDS, SPARE_SHARE * grading_seconds)
        self._retries = grading_retries
        self._policy = GradingPolicy()
        self._paths = EnvironmentPaths.for_os(self.environment.os)

    @override
    async def verify(self) -> VerifierResult:
        """Raises GradingSetupError when the environment or the task cannot be graded so."""
        policy = self._policy = await asyncio.to_thread(read_policy, self.task.paths.task_dir)
        environment = self._environment()
        await environment.end_commands()
        if self.step_name is not None or self._skip_tests_upload:
            return await super().verify()
        if resolve_task_verifier_mode(self.task.config) is VerifierEnvironmentMode.SEPARATE:
            return await self._judge(environment, NOWHERE, [], GradingReport(mode="separate"))
        if policy.mode == "in-place":
            return await self._judge(environment, NOWHERE, [], GradingReport(mode="in-place", reason=policy.reason))
        return await self._judge_fresh(environment, policy)

    def _environment(self) -> GradedEnvironment:
        environment: object = self.environment
        if not isinstance(environment, GradedEnvironment):
            raise GradingSetupError(
                f"{type(environment).__name__} cannot end an agent's processes and start a fresh sandbox for grading: "
                "use an environment with run(), end_commands() and renew(), such as "
                "agentic.rollout.environment:LoglessEnvironment"
            )
        return environment

    async def _judge_fresh(self, environment: GradedEnvironment, policy: GradingPolicy) -> VerifierResult:
        limits = Limits()
        agent: Listing | None = None
        report = GradingReport(mode="fresh")
        try:
            agent = await list_recent(environment, policy.folder, limits)
        except ChangesRefusedError as error:
            report = report.model_copy(update={"refused": str(error)})
        while True:
            try:
                return await self._judge_once(environment, policy, agent, limits, report)
            except SandboxExhaustedError:
                raise
            except (SandboxLostError, SandboxStartError, SandboxTransferError) as error:
                if len(report.lost) >= self._retries:
                    raise
                report = report.model_copy(update={"lost": (*report.lost, f"{type(error).__name__}: {error}")})

    async def _judge_once(
        self,
        environment: GradedEnvironment,
        policy: GradingPolicy,
        agent: Listing | None,
        limits: Limits,
        report: GradingReport,
    ) -> VerifierResult:
        await environment.renew()
        untouched = await self._look(environment, policy, agent, limits)
        if agent is None:
            return self._result(report, {"reward": 0.0})
        changes, left_out = compare(untouched, agent)
        kept, undone = undo(changes, untouched, policy)
        patch = await asyncio.to_thread(make_patch, kept)
        (self.trial_paths.verifier_dir / PATCH).write_text(patch.text, errors="replace")
        report = report.model_copy(
            update={
                "changed": _names(change.path for change in kept),
                "undone": _names(undone),
                "left_out": _names(left_out),
                "patch_lines": patch.changed_lines,
            }
        )
        try:
            return await self._judge(environment, untouched, kept, report)
        except _NO_REWARD as error:
            await environment.renew()
            await self._judge(environment, untouched, [], report)  # Raises when the task is at fault.
            reason = f"with the agent's changes the tests wrote no reward, and without them they do: {error}"
            return self._result(report.model_copy(update={"reason": reason}), {"reward": 0.0})

    async def _look(
        self, environment: GradedEnvironment, policy: GradingPolicy, agent: Listing | None, limits: Limits
    ) -> Listing:
        """The untouched folder, with the contents of all that the agent changed or removed. Removes later history."""
        needed = needed_paths(agent) if agent is not None else []
        untouched = await list_chosen(environment, policy.folder, needed, limits)
        if untouched.folder == "/":
            raise GradingSetupError(
                "the task has no working folder: give its image a WORKDIR, or say metadata.grading.folder in task.toml"
            )
        if agent is not None and (gone := gone_paths(untouched, agent)):
            untouched = await list_chosen(environment, policy.folder, [*needed, *gone], limits)
        if untouched.has_repository:
            await forget_later_history(environment, policy.folder)
        return untouched

    async def _judge(
        self, environment: GradedEnvironment, untouched: Listing, changes: Sequence[Change], report: GradingReport
    ) -> VerifierResult:
        """Bring changes and tests, run the tests, read the reward."""
        paths = self._paths
        script = await self._bring(environment, untouched, changes)
        log = f"{paths.verifier_dir}/{self.trial_paths.test_stdout_path.name}"
        command = _RUN.format(
            script=script,
            log=log,
            log_bytes=LOG_BYTES,
            rewards=f"{paths.reward_json_path} {paths.reward_text_path}",
            processes="" if environment.shares_processes else "/proc/[0-9]*",
            patience=PATIENCE_SECONDS,
        )
        limit = self._tests_limit_seconds()
        began = time.monotonic()
        result = await self.environment.exec(command=command, env=self._env(), timeout_sec=limit)
        seconds = time.monotonic() - began
        report = report.model_copy(update={"tests_seconds": seconds})
        if result.return_code == TIMEOUT_EXIT_CODE:
            self.trial_paths.test_stdout_path.write_text(f"the tests took longer than {limit} s\n")
            return self._result(report.model_copy(update={"timed_out": True}), {"reward": 0.0})
        self.trial_paths.test_stdout_path.write_text(result.stderr or "")
        state, _, written = (result.stdout or "").partition("\n")
        rewards = self._parse(written)
        if state == "busy" and not self._policy.may_leave_processes and rewards.get("reward", 0.0) > 0.0:
            return self._result(report.model_copy(update={"reason": LEFT_RUNNING}), {"reward": 0.0})
        return self._result(report, rewards)

    def _tests_limit_seconds(self) -> int:
        left = self._ends - time.monotonic()
        allowed: float = self.task.config.verifier.timeout_sec
        return max(1, round(min(left, allowed)))

    async def _bring(self, environment: Runs, untouched: Listing, changes: Sequence[Change]) -> str:
        """The script to run, once it and everything that it needs is there."""
        (folder,), _, script = self._resolve_tests()
        self.task.file_filter.require_included(script)
        with selected_directory(self.task.file_filter.select(folder)) as source:
            await bring(environment, Path(source), self._paths, untouched, changes)
        place = self._paths.tests_dir / script.relative_to(folder).as_posix()
        inside: str = quote_shell_arg(str(place), self.environment.os)
        return inside

    def _env(self) -> dict[str, str] | None:
        merged = {**self.task.config.verifier.env, **(self.verifier_env or {}), **self.override_env}
        return resolve_env_vars(merged) if merged else None

    def _parse(self, output: str) -> dict[str, float]:
        name, _, content = output.removesuffix("\n").partition("\n")
        for path, parse in (
            (self.trial_paths.reward_json_path, self._parse_reward_json),
            (self.trial_paths.reward_text_path, self._parse_reward_text),
        ):
            if name == path.name:
                path.write_text(content)
                return dict(parse())
        raise RewardFileNotFoundError(f"the tests wrote neither {self.trial_paths.reward_json_path.name} nor txt")

    def _result(self, report: GradingReport, rewards: dict[str, float]) -> VerifierResult:
        report.write(self.trial_paths.verifier_dir)
        return VerifierResult(rewards=rewards)


def _names(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(path.encode(errors="surrogateescape").decode(errors="replace") for path in islice(paths, NAMED_PATHS))
