"""What the tests wrote, and what of it counts.

A test script writes `reward.json` or `reward.txt`, but code under test can write the other one. So two files count only
when they say the same, and a reward that is no finite number counts as none: which file is read is nobody's choice.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harbor.models.trial.paths import EnvironmentPaths, TrialPaths
from harbor.verifier.verifier import RewardFileEmptyError, RewardFileNotFoundError, VerifierOutputParseError

from agentic.rollout.outcomes import RESOLVED_KEY

NO_REWARD = (RewardFileNotFoundError, RewardFileEmptyError, VerifierOutputParseError)

PATIENCE_SECONDS = 0.5
"""How long processes that the tests ended last may take to be gone."""

LOOKS = 20_000
"""How often it is looked for them at most, where the clock cannot be read."""

LINES, BYTES = 20_000, 64 * 1024
"""Of a file with a reward; the line that goes over is read to its end."""

RUN = """\
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
now() {{
  read -r clock rest < /proc/uptime && clock=${{clock%.*}}${{clock#*.}} || clock=0
  while :; do case "$clock" in 0?*) clock=${{clock#0}} ;; *) return ;; esac; done
}}
settled() {{
  now
  ends=$((clock + {patience})) looks=0
  while left; do
    now
    looks=$((looks + 1))
    [ "$clock" -lt "$ends" ] && [ "$looks" -lt {looks} ] || return 1
  done
}}
contents() {{
  said= lines=0
  while [ "$lines" -lt {lines} ] && [ "${{#said}}" -lt {bytes} ] && {{ IFS= read -r line || [ -n "$line" ]; }}; do
    [ "$lines" = 0 ] && said=$line || said="$said$separator$line"
    lines=$((lines + 1))
  done < "$1"
}}
({script}) > {log} 2>&1
text=none json=none
separator=' '
[ -f {text} ] && contents {text} && text="text $said"
separator='
'
[ -f {json} ] && contents {json} && json="json $said"
if settled; then echo quiet; else echo busy; fi
printf '%s\\n%s\\n' "$text" "$json"
tail -c {log_bytes} {log} >&2
exit 0
"""
"""Runs the tests; says then whether they left processes, and, what is read before that is asked, both files: the text
in one line. Code under test may have put its own programs in place of the image's, so until all of that is said nothing
is run but the shell itself, which was there before: no program, and no other shell."""


LOG_BYTES = 64 * 1024
"""What is kept of the tests' output: enough for the failures at its end."""


def run_tests(script: str, paths: EnvironmentPaths, log: str, *, sees_processes: bool) -> str:
    """`RUN` for a quoted script. `sees_processes`: the sandbox's processes are its own alone."""
    return RUN.format(
        script=script,
        log=log,
        log_bytes=LOG_BYTES,
        text=paths.reward_text_path,
        json=paths.reward_json_path,
        processes="/proc/[0-9]*" if sees_processes else "",
        patience=int(PATIENCE_SECONDS * 100),
        looks=LOOKS,
        lines=LINES,
        bytes=BYTES,
    )


@dataclass(frozen=True, slots=True)
class Written:
    """The answer of `RUN`."""

    is_busy: bool
    """Whether processes of the tests still run."""
    text: str | None
    json: str | None


def read_answer(output: str, exit_code: int) -> Written:
    """From the script's output. Raises RewardFileNotFoundError for what it cannot have said: code under test may have
    written there too, or have ended the script."""
    found = _ANSWER.fullmatch(output)
    if found is None or exit_code != 0:
        raise RewardFileNotFoundError(f"the tests ended, or disturbed, what reads their reward (exit code {exit_code})")
    return Written(found["state"] == "busy", found["text"], found["json"])


_ANSWER = re.compile(r"(?P<state>busy|quiet)\n(?:none|text (?P<text>[^\n]*))\n(?:none|json (?P<json>.*))\n", re.DOTALL)

Parse = Callable[[], Mapping[str, float]]
"""Reads the file of its name in the trial's folder; raises one of `NO_REWARD`."""


def rewards_of(
    written: Written, paths: TrialPaths, parse_json: Parse, parse_text: Parse
) -> tuple[dict[str, float], str]:
    """The rewards, and why they are zero when the files do not count. Raises one of `NO_REWARD` when there are none."""
    found = [
        _parsed(content, path, parse)
        for content, path, parse in (
            (written.json, paths.reward_json_path, parse_json),
            (written.text, paths.reward_text_path, parse_text),
        )
        if content is not None
    ]
    if not found:
        raise RewardFileNotFoundError(f"the tests wrote neither {paths.reward_json_path.name} nor txt")
    first, last = found[0], found[-1]
    if isinstance(first, dict) and isinstance(last, dict) and first[RESOLVED_KEY] == last[RESOLVED_KEY]:
        return first, ""
    if len(found) == 2:
        return {RESOLVED_KEY: 0.0}, f"{paths.reward_json_path.name} and {paths.reward_text_path.name} disagree"
    raise first if isinstance(first, Exception) else VerifierOutputParseError("the tests wrote no finite reward")


def _parsed(content: str, path: Path, parse: Parse) -> dict[str, float] | Exception:
    path.write_text(content, encoding="utf-8", errors="replace")
    problem: Exception = VerifierOutputParseError(f"{path.name} has no finite {RESOLVED_KEY!r}")
    try:
        rewards = parse()
        if RESOLVED_KEY in rewards and all(math.isfinite(float(value)) for value in rewards.values()):
            return dict(rewards)
    except NO_REWARD as error:
        problem = error
    except (AttributeError, OverflowError, RecursionError, TypeError) as error:  # No object, too large, too deep.
        problem = VerifierOutputParseError(f"{path.name} cannot be read: {error}")
    return problem
