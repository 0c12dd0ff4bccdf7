"""What is left of a repository's history, by real git."""

import asyncio
import subprocess

import pytest

from agentic.rollout.errors import GradingSetupError
from agentic.rollout.grading.history import forget_later_history
from agentic.sandbox.base import ExecResult

WHO = ("-c", "user.name=t", "-c", "user.email=t@t")


class Here:
    """Runs what a sandbox would be asked to."""

    async def run(self, command, *, stdin=b"", timeout_seconds=None):
        done = await asyncio.to_thread(subprocess.run, command, input=stdin, capture_output=True, check=False)
        return ExecResult(done.returncode, done.stdout, done.stderr)


def git(folder, *words):
    done = subprocess.run(["git", *WHO, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(folder, text):
    (folder / "a.txt").write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", text)
    return git(folder, "rev-parse", "HEAD:a.txt")


def repository(folder):
    """With an earlier and a later commit than HEAD; returns the contents' names."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    names = [commit(folder, text) for text in ("earlier", "now", "later")]
    git(folder, "branch", "ahead")
    git(folder, "reset", "-q", "--hard", "HEAD~1")
    return names


def known(git_dir, names):
    found = [subprocess.run(["git", "--git-dir", git_dir, "cat-file", "-e", name], check=False) for name in names]
    return [done.returncode == 0 for done in found]


@pytest.mark.parametrize("place", [".", "with space/and * more", "x/$(touch y)"])
async def test_only_earlier_commits_are_left_wherever_the_repository_lies(tmp_path, place):
    folder = tmp_path / "app" / place
    names = repository(folder)
    await forget_later_history(Here(), str(tmp_path / "app"))
    assert known(folder / ".git", names) == [True, True, False]
    assert git(folder, "log", "--format=%s", "--all").split() == ["now", "earlier"]
    assert git(folder, "status", "--porcelain") == ""


async def test_the_repositories_of_submodules_know_nothing_later_either(tmp_path):
    names = repository(tmp_path / "library")
    repository(tmp_path / "app")
    for name in ("a module", "objects"):
        git(tmp_path / "app", "-c", "protocol.file.allow=always", "submodule", "add", "../library", name)
        git(tmp_path / "app" / name, "remote", "rename", "origin", "up")
    modules = [tmp_path / "app/.git/modules" / name for name in ("a module", "objects")]
    assert all(known(module, names) == [True] * 3 for module in modules)
    await forget_later_history(Here(), str(tmp_path / "app"))
    assert [known(module, names) for module in modules] == [[True, True, False]] * 2
    assert git(tmp_path / "app" / "a module", "log", "--format=%s").split() == ["now", "earlier"]


async def test_a_repository_that_git_cannot_read_is_removed_whole(tmp_path):
    repository(tmp_path / "app")
    (tmp_path / "app/.git/HEAD").write_text("nonsense")
    await forget_later_history(Here(), str(tmp_path / "app"))
    assert not (tmp_path / "app/.git").exists()
    assert (tmp_path / "app/a.txt").read_text() == "now"


async def test_a_folder_that_is_not_there_is_said(tmp_path):
    with pytest.raises(GradingSetupError, match="exit code 3"):
        await forget_later_history(Here(), str(tmp_path / "nowhere"))
