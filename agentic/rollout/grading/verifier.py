"""Grades what an agent changed, in a sandbox that it never saw.

1. Every process of the agent is ended, and what it changed in the working folder is taken out (`collecting.py`).
2. The agent's sandbox is given back, and a fresh one from the same image takes its place. So nothing that lies outside
   the working folder comes along: no programs, packages, profiles, daemons, nor anything in `/tests` or `/logs`.
3. There, later history is removed (`history.py`), the changes are compared with the untouched files (`changes.py`),
   those to tests and their configuration are undone (`protection.py`), and the rest is applied.
4. The task's tests come last, run as the verifier's user, and what they wrote to `/logs/verifier` counts, read by
   Harbor's own parser.

A fresh sandbox that is lost is replaced, and only grading is done again. Whatever goes wrong with the agent's changes
and not with the untouched folder is the agent's doing: changes that cannot be read or brought, tests that run out of
the time that they were promised, that write no reward, or that go over the sandbox's limits. It earns 0, with the
reason in the report. All else that goes wrong raises, and is never a zero, nor can an agent bring it about. What is
measured here (`report.py`) is apart from what the tests report.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any, Protocol, override, runtime_checkable

from harbor.models.task.verifier_mode import VerifierEnvironmentMode, resolve_task_verifier_mode
from harbor.models.trial.paths import EnvironmentPaths
from harbor.models.verifier.result import VerifierResult
from harbor.utils.env import resolve_env_vars
from harbor.utils.file_staging import selected_directory
from harbor.utils.scripts import quote_shell_arg
from harbor.verifier.verifier import Verifier

from agentic.rollout.errors import ChangesRefusedError, GradingSetupError, GradingTimeError
from agentic.rollout.grading.answers import is_right
from agentic.rollout.grading.bringing import bring
from agentic.rollout.grading.changes import Change, compare, needed_paths, wanted_paths
from agentic.rollout.grading.collecting import Runs, check_answers, list_chosen, list_recent
from agentic.rollout.grading.history import forget_later_history
from agentic.rollout.grading.moving import Sources, find_sources, with_moved
from agentic.rollout.grading.patch import Patch, make_patch
from agentic.rollout.grading.protection import undo
from agentic.rollout.grading.report import NAMED_PATHS, PATCH, Failure, GradingReport, write_failure
from agentic.rollout.grading.rewards import NO_REWARD, read_answer, rewards_of, run_tests
from agentic.rollout.grading.time_limits import GradingTime
from agentic.rollout.grading.tree import Limits, Listing
from agentic.rollout.outcomes import RESOLVED_KEY
from agentic.sandbox.base import TIMEOUT_EXIT_CODE
from agentic.sandbox.errors import (
    SandboxExhaustedError,
    SandboxLostError,
    SandboxStartError,
    SandboxTransferError,
)
from agentic.tasks.grading_policy import GradingPolicy, read_policy

NOWHERE = Listing("/", {})
"""The working folder where no changes are brought."""

LEFT_RUNNING = (
    "the tests left processes running, any of which could have written the reward: end them in tests/test.sh, or say "
    "metadata.grading.may_leave_processes"
)
"""Why a resolved task earns nothing; the check of a task with its reference solution shows it too."""

FAILED: Mapping[str, float] = MappingProxyType({RESOLVED_KEY: 0.0})
"""What an agent earns that failed in its own way."""

OUT_OF_TIME = Failure("VerifierTimeoutError", "grading took longer than rollout.grading_seconds")
"""How Harbor calls it when it ends grading."""

_WITHOUT = "with the agent's changes the tests wrote no reward, and without them they do: {error}"

type Judged = tuple[GradingReport, Mapping[str, float]]
"""What is known after the tests ran: the report, and the rewards."""


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
        self._time = GradingTime(grading_seconds, time.monotonic)
        self._retries = grading_retries
        self._limits = Limits()
        self._policy = GradingPolicy()
        self._paths = EnvironmentPaths.for_os(self.environment.os)

    @override
    async def verify(self) -> VerifierResult:
        """Raises GradingSetupError when the environment or the task cannot be graded so. What it raises is written down
        as well."""
        try:
            return await self._verify()
        except asyncio.CancelledError:
            write_failure(self.trial_paths.verifier_dir, OUT_OF_TIME)
            raise
        except Exception as error:
            write_failure(self.trial_paths.verifier_dir, Failure(type(error).__name__, str(error)))
            raise

    async def _verify(self) -> VerifierResult:
        policy = self._policy = read_policy(self.task.paths.task_dir)
        environment = self._environment()
        await environment.end_commands()
        if self.step_name is not None or self._skip_tests_upload:
            return await super().verify()
        if resolve_task_verifier_mode(self.task.config) is VerifierEnvironmentMode.SEPARATE:
            return await self._judge_in_place(environment, GradingReport(mode="separate"))
        if policy.mode == "in-place":
            return await self._judge_in_place(environment, GradingReport(mode="in-place", reason=policy.reason))
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

    async def _judge_in_place(self, environment: GradedEnvironment, report: GradingReport) -> VerifierResult:
        await self._bring(environment, NOWHERE, [])
        return self._result(*await self._judge(environment, report))

    async def _judge_fresh(self, environment: GradedEnvironment, policy: GradingPolicy) -> VerifierResult:
        agent, report = await self._read(environment, policy)
        while True:
            try:
                return self._result(*await self._judge_once(environment, policy, agent, report))
            except SandboxExhaustedError as error:
                raise GradingSetupError(
                    f"the task goes over its sandbox's limits without the agent's changes: raise them ({error})"
                ) from error
            except (SandboxLostError, SandboxStartError, SandboxTransferError) as error:
                if len(report.lost) >= self._retries:
                    raise
                report = report.model_copy(update={"lost": (*report.lost, f"{type(error).__name__}: {error}")})

    async def _read(
        self, environment: GradedEnvironment, policy: GradingPolicy
    ) -> tuple[Listing | None, GradingReport]:
        """What the agent left, None when it cannot be taken. From here on nothing depends on its sandbox."""
        report = GradingReport(mode="fresh")
        began = time.monotonic()
        try:
            agent = await list_recent(environment, policy.folder, self._limits, self._time.reading_seconds)
        except ChangesRefusedError as error:
            return None, report.model_copy(update={"refused": str(error)})
        finally:
            self._time.count_reading(time.monotonic() - began)
        return agent, report

    async def _judge_once(
        self, environment: GradedEnvironment, policy: GradingPolicy, agent: Listing | None, report: GradingReport
    ) -> Judged:
        await environment.renew()
        began = time.monotonic()
        untouched, sources = await self._look(environment, policy, agent)
        if agent is None:
            await check_answers(environment)
            self._time.check_reading(time.monotonic() - began)
            return report, FAILED
        try:
            changes, left_out = await asyncio.to_thread(_compared, agent, untouched, sources)
            kept, undone, patch = await asyncio.to_thread(_counted, changes, untouched, policy)
            (self.trial_paths.verifier_dir / PATCH).write_text(patch.text, errors="replace")
            report = report.model_copy(
                update={
                    "changed": _names(change.path for change in kept),
                    "undone": _names(undone),
                    "left_out": _names(left_out),
                    "patch_lines": patch.changed_lines,
                }
            )
            return await self._judge_changes(environment, untouched, kept, report)
        except ChangesRefusedError as error:
            return report.model_copy(update={"refused": str(error)}), FAILED

    async def _look(
        self, environment: GradedEnvironment, policy: GradingPolicy, agent: Listing | None
    ) -> tuple[Listing, Sources]:
        """The untouched folder, with the contents of all that the agent changed, moved or removed. Removes later
        history."""
        needed = needed_paths(agent) if agent is not None else []
        try:
            untouched = await list_chosen(environment, policy.folder, needed, self._limits)
        except GradingSetupError:
            if not needed:
                raise
            untouched = await list_chosen(environment, policy.folder, (), self._limits)  # Not all that was asked for.
        if untouched.folder == "/":
            raise GradingSetupError(
                "the task has no working folder: give its image a WORKDIR, or say metadata.grading.folder in task.toml"
            )
        sources: Sources = {}
        if agent is not None:
            sources, wanted = await asyncio.to_thread(_wanted, untouched, agent, self._limits)
            if not untouched.nodes.keys() >= set(wanted):
                untouched = await list_chosen(environment, policy.folder, wanted, self._limits)
        if untouched.has_repository:
            await forget_later_history(environment, policy.folder)
        return untouched, sources

    async def _judge_changes(
        self, environment: GradedEnvironment, untouched: Listing, changes: Sequence[Change], report: GradingReport
    ) -> Judged:
        """As the tests say, and 0 when they say nothing although they do of the untouched folder."""
        try:
            await self._bring_twice(environment, untouched, changes)
            return await self._with_algebra(await self._judge(environment, report), changes)
        except (*NO_REWARD, SandboxExhaustedError) as error:
            reason = _WITHOUT.format(error=error)
        await self._renew(environment, untouched)
        await self._bring(environment, untouched, [])
        control, _ = await self._judge(environment, report)
        if control.timed_out:
            raise GradingSetupError(
                "the tests take longer than they may without the agent's changes: raise verifier.timeout_sec or "
                "rollout.grading_seconds"
            )
        return report.model_copy(update={"reason": reason}), FAILED

    async def _with_algebra(self, judged: Judged, changes: Sequence[Change]) -> Judged:
        """An answer that the tests took for wrong may be right in another form, where the task says so."""
        report, rewards = judged
        if not self._policy.answer_file or rewards[RESOLVED_KEY] > 0.0 or report.timed_out or report.reason:
            return judged
        if await is_right(self.task.paths.tests_dir, self._policy.answer_file, changes):
            return report.model_copy(update={"by_algebra": True}), {RESOLVED_KEY: 1.0}
        return judged

    async def _renew(self, environment: GradedEnvironment, untouched: Listing) -> None:
        await environment.renew()
        if untouched.has_repository:
            await forget_later_history(environment, self._policy.folder)

    async def _bring_twice(self, environment: GradedEnvironment, untouched: Listing, changes: Sequence[Change]) -> None:
        """Raises ChangesRefusedError when it is the changes that do not arrive, in two sandboxes, and nothing else."""
        try:
            await self._bring(environment, untouched, changes)
        except SandboxTransferError:
            await self._renew(environment, untouched)
            await self._bring(environment, untouched, [])
            try:
                await self._bring(environment, untouched, changes)
            except SandboxTransferError as error:
                raise ChangesRefusedError(f"what was changed cannot be brought to a fresh sandbox: {error}") from error

    async def _judge(self, environment: GradedEnvironment, report: GradingReport) -> Judged:
        """Run the tests, which are there, and read the reward."""
        paths = self._paths
        command = run_tests(
            quote_shell_arg(str(self._script()), self.environment.os),
            paths,
            f"{paths.verifier_dir}/{self.trial_paths.test_stdout_path.name}",
            sees_processes=not environment.shares_processes,
        )
        limit = self._time.of_tests(self.task.config.verifier.timeout_sec)
        began = time.monotonic()
        result = await self.environment.exec(command=command, env=self._env(), timeout_sec=max(1, int(limit.seconds)))
        seconds = time.monotonic() - began
        report = report.model_copy(update={"tests_seconds": seconds})
        if result.return_code == TIMEOUT_EXIT_CODE:
            if limit.is_cut:
                raise GradingTimeError(
                    f"waiting for sandboxes left the tests {limit.seconds:.0f} s, less than they may take, and they "
                    "took longer: raise rollout.grading_seconds"
                )
            self.trial_paths.test_stdout_path.write_text(f"{self._too_long(limit.seconds)}\n")
            return report.model_copy(update={"timed_out": True}), FAILED
        self.trial_paths.test_stdout_path.write_text(result.stderr or "")
        written = read_answer(result.stdout or "", result.return_code)
        rewards: Mapping[str, float]
        rewards, reason = rewards_of(written, self.trial_paths, self._parse_reward_json, self._parse_reward_text)
        if written.is_busy and not self._policy.may_leave_processes and rewards[RESOLVED_KEY] > 0.0:
            rewards, reason = FAILED, LEFT_RUNNING
        return (report.model_copy(update={"reason": reason}) if reason else report), rewards

    def _too_long(self, limit_seconds: float) -> str:
        allowed_seconds = self.task.config.verifier.timeout_sec
        whose = f" of the {allowed_seconds:.0f} that the task allows: rollout.grading_seconds has no room for more"
        return f"the tests took longer than {limit_seconds:.0f} s" + (whose if limit_seconds < allowed_seconds else "")

    async def _bring(self, environment: Runs, untouched: Listing, changes: Sequence[Change]) -> None:
        (folder,), _, script = self._resolve_tests()
        self.task.file_filter.require_included(script)
        with selected_directory(self.task.file_filter.select(folder)) as source:
            await bring(environment, Path(source), self._paths, untouched, changes)

    def _script(self) -> PurePath:
        """The script to run, as the sandbox names it."""
        (folder,), _, script = self._resolve_tests()
        return PurePath(self._paths.tests_dir / script.relative_to(folder).as_posix())

    def _env(self) -> dict[str, str] | None:
        merged = {**self.task.config.verifier.env, **(self.verifier_env or {}), **self.override_env}
        return resolve_env_vars(merged) if merged else None

    def _result(self, report: GradingReport, rewards: Mapping[str, float]) -> VerifierResult:
        report.write(self.trial_paths.verifier_dir)
        return VerifierResult(rewards=dict(rewards))


def _wanted(untouched: Listing, agent: Listing, limits: Limits) -> tuple[Sources, list[str]]:
    """Where moved files may have been, and whose untouched contents a comparison needs. Of a large folder this takes
    long, as do the next two; none of them holds up other trials."""
    sources = find_sources(untouched, agent, limits)
    return sources, wanted_paths(untouched, agent, chain.from_iterable(sources.values()), limits)


def _compared(agent: Listing, untouched: Listing, sources: Sources) -> tuple[list[Change], list[str]]:
    """The changes, and what was not taken."""
    return compare(untouched, with_moved(agent, untouched, sources))


def _counted(
    changes: Sequence[Change], untouched: Listing, policy: GradingPolicy
) -> tuple[list[Change], list[str], Patch]:
    """What counts, the paths of what was undone, and the diff."""
    kept, undone = undo(changes, untouched, policy)
    return kept, undone, make_patch(kept)


def _names(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(path.encode(errors="surrogateescape").decode(errors="replace") for path in islice(paths, NAMED_PATHS))
