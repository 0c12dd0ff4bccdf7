"""Takes from a repository what its working tree could not know: later commits, remotes, and what no reference names.

Run as root in a sandbox's working folder, in the agent's before the agent has it and in the fresh one before the tests.
Kept are HEAD's own history and the references within it, so that `git log`, `git blame` and `git checkout` of a base
commit work as before. Everything else (branches and tags ahead, stashes, reflogs, remotes, dangling and packed objects)
is gone from the disk, not merely unnamed, in the repositories of submodules too. A repository that git cannot repair
is removed whole. A `.git` that is a file, and leads out of the working folder, is not followed.
"""

from agentic.rollout.errors import GradingSetupError
from agentic.rollout.grading.collecting import Runs

REPOSITORY_DEPTH = 3
"""How deep below the working folder a `.git` is looked for, itself included."""

CLEAN_SECONDS = 300.0
"""Packing a repository of half a million objects anew takes about ten seconds."""

CLEAN = r"""
clean() {
  git remote | while read -r name; do git remote remove "$name" || exit 1; done || return 1
  git for-each-ref --format='%(refname)' | while read -r name; do
    git merge-base --is-ancestor "$name" HEAD 2> /dev/null || git update-ref --no-deref -d "$name" || exit 1
  done || return 1
  rm -rf "$1"/logs "$1"/worktrees "$1"/*_HEAD "$1"/lost-found || return 1
  rm -rf "$1"/objects/pack/*.keep "$1"/objects/info/commit-graph* || return 1
  if git rev-parse -q --verify HEAD > /dev/null; then
    git -c pack.threads=1 repack -adq || return 1
  fi
  rm -f "$1"/objects/info/alternates
  git prune --expire=now
}
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
for place; do
  where="$PWD/${place#./}"
  case $where in
    */HEAD) where=${where%/HEAD}; [ -d "$where/objects" ] && [ -d "$where/refs" ] || continue ;;
    *) [ ! -d "$where/modules" ] || find "$place/modules" -name HEAD -type f -exec /bin/sh -c 'eval "$CLEAN"' sh {} + ;;
  esac
  export GIT_DIR="$where"
  clean "$GIT_DIR" > /dev/null 2>&1 || rm -rf "$GIT_DIR" || echo "$place"
done
"""
"""Cleans the repositories that it is given, by their folder or, of submodules, by its HEAD; names what it cannot even
remove. find takes no argument that holds its own braces, so the text is a variable."""

SCRIPT = r"""
folder=$1
export CLEAN="$3"
[ -z "$folder" ] || cd "$folder" || exit 3
left=$(find . -xdev -maxdepth "$2" -name .git -type d -prune -exec /bin/sh -c 'eval "$CLEAN"' sh {} + 2> /dev/null)
[ -z "$left" ] || { echo "$left" >&2; exit 4; }
"""


async def forget_later_history(sandbox: Runs, folder: str) -> None:
    """See the module. Costs one look when there is no repository. Raises GradingSetupError when it cannot be done."""
    result = await sandbox.run(
        ("/bin/sh", "-c", SCRIPT, "sh", folder, str(REPOSITORY_DEPTH), CLEAN), timeout_seconds=CLEAN_SECONDS
    )
    if result.exit_code != 0:
        raise GradingSetupError(
            f"later history cannot be removed from {folder or 'the working folder'} (exit code {result.exit_code}): "
            f"{result.error_text.strip()[-200:]}"
        )
