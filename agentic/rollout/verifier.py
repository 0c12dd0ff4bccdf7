"""Harbor's verifier with three round trips to the sandbox instead of five, and nothing of the agent's in `/tests`.

The same files in the same places, the same rules about what a reward is (Harbor's own parser), the same exceptions: the
task's tests are copied to `/tests`, the test script runs as the verifier's user, and what it wrote to
`/logs/verifier/reward.json` or `reward.txt` counts. Before, whatever the agent left in `/tests` and any reward are
removed, so that no planted `conftest.py` is picked up by the tests; and before that every process that the agent left
running is ended, since it could put its reward there again, or change the tests. (So a task that wants a server to be
up when it is graded starts it in its tests.) The reward comes back as the output of the command
that ran the tests, and the end of the tests' own output beside it; the rest of the folder stays in the sandbox.
"""

import stat
from typing import Protocol, override, runtime_checkable

from harbor.models.trial.paths import EnvironmentPaths
from harbor.models.verifier.result import VerifierResult
from harbor.utils.env import resolve_env_vars
from harbor.utils.file_staging import selected_directory
from harbor.utils.scripts import quote_shell_arg
from harbor.verifier.verifier import AddTestsDirError, RewardFileNotFoundError, Verifier

from agentic.rollout.errors import RolloutConfigError

LOG_BYTES = 64 * 1024
"""What is kept of the tests' output: enough for the failures at its end."""

_EXECUTABLE = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH
_PREPARE = "rm -rf -- {tests} {verifier} && mkdir -p {folders} && chmod 777 {folders}"
_RUN = """\
({script}) > {log} 2>&1
tail -c {log_bytes} {log} >&2
for reward in {rewards}; do
  if [ -f "$reward" ]; then basename "$reward"; head -c 65536 "$reward"; break; fi
done
"""


@runtime_checkable
class EndsCommands(Protocol):
    """A Harbor environment in which nothing of the agent's can run on into grading."""

    async def end_commands(self) -> None:
        """See `Sandbox.end_commands`."""


class BriefVerifier(Verifier):  # type: ignore[misc]
    """For tests that are copied into the sandbox that the agent used; other set-ups go Harbor's way."""

    @override
    async def verify(self) -> VerifierResult:
        """Raises RolloutConfigError when the environment cannot end what the agent left running."""
        await self._end_commands()
        if self._skip_tests_upload or self.step_name is not None:
            return await super().verify()
        paths = EnvironmentPaths.for_os(self.environment.os)
        folders = f"{paths.agent_dir} {paths.verifier_dir} {paths.artifacts_dir}"
        await self._as_root(_PREPARE.format(tests=paths.tests_dir, verifier=paths.verifier_dir, folders=folders))
        script = await self._upload_tests(paths)
        log = f"{paths.verifier_dir}/{self.trial_paths.test_stdout_path.name}"
        rewards = f"{paths.reward_json_path} {paths.reward_text_path}"
        command = _RUN.format(script=script, log=log, log_bytes=LOG_BYTES, rewards=rewards)
        result = await self.environment.exec(command=command, env=self._env())
        self.trial_paths.test_stdout_path.write_text(result.stderr or "")
        return self._parse(result.stdout or "")

    async def _end_commands(self) -> None:
        environment: object = self.environment
        if not isinstance(environment, EndsCommands):
            raise RolloutConfigError(
                f"{type(environment).__name__} cannot end an agent's processes before grading: use an environment "
                "with end_commands(), such as agentic.sandbox.harbor_environment:SandboxEnvironment"
            )
        await environment.end_commands()

    async def _as_root(self, command: str) -> None:
        result = await self.environment.exec(command=command, user="root")
        if result.return_code != 0:
            raise AddTestsDirError(f"cannot prepare grading: {result.stderr or result.stdout}")

    async def _upload_tests(self, paths: EnvironmentPaths) -> str:
        (folder,), _, script = self._resolve_tests()
        self.task.file_filter.require_included(script)
        with selected_directory(self.task.file_filter.select(folder)) as source:
            await self.environment.upload_dir(source_dir=source, target_dir=str(paths.tests_dir))
        inside: str = quote_shell_arg(str(paths.tests_dir / script.relative_to(folder).as_posix()), self.environment.os)
        if script.stat().st_mode & _EXECUTABLE != _EXECUTABLE:  # Copies keep the mode.
            await self._as_root(f"chmod +x {inside}")
        return inside

    def _env(self) -> dict[str, str] | None:
        merged = {**self.task.config.verifier.env, **(self.verifier_env or {}), **self.override_env}
        return resolve_env_vars(merged) if merged else None

    def _parse(self, output: str) -> VerifierResult:
        name, _, content = output.partition("\n")
        for path, parse in (
            (self.trial_paths.reward_json_path, self._parse_reward_json),
            (self.trial_paths.reward_text_path, self._parse_reward_text),
        ):
            if name == path.name:
                path.write_text(content)
                return VerifierResult(rewards=parse())
        raise RewardFileNotFoundError(f"the tests wrote neither {self.trial_paths.reward_json_path.name} nor txt")
