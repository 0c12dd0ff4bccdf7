"""The checker that ships in each generated task, run as a real process on honest and on hostile modules."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import agentic.tasks.mutation.checker as checker_module

WITHOUT_CAPABILITIES = (
    ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 and shutil.which("setpriv") else ()
)
"""Root without its powers over other processes, as in a sandbox."""

HONEST = "def double(x):\n    return x * 2\n"
CALLS = [["double", [2]], ["double", [[1]]], ["double", [None]]]
EXPECTED = ["4", "[1, 1]", "TypeError"]


def grade(folder: Path, module: str) -> dict[str, object]:
    """Lay out the task's tests as Harbor does, run the checker, and read what Harbor would read."""
    tests, logs = folder / "tests", folder / "logs"
    tests.mkdir()
    (folder / "mod.py").write_text(module.replace("TESTS", str(tests)).replace("LOGS", str(logs)))
    (tests / "check.py").write_bytes(Path(checker_module.__file__).read_bytes())
    (tests / "calls.json").write_text(json.dumps(CALLS))
    (tests / "expected.json").write_text(json.dumps(EXPECTED))
    command = [
        *WITHOUT_CAPABILITIES,
        sys.executable,
        "-I",
        "-S",
        str(tests / "check.py"),
        str(folder / "mod.py"),
        str(logs),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    text = (logs / "reward.txt").read_text()
    rewards: dict[str, object] = json.loads((logs / "reward.json").read_text())
    assert rewards == {"reward": int(text)}
    return rewards


def test_a_right_module_earns_one(tmp_path: Path) -> None:
    assert grade(tmp_path, HONEST) == {"reward": 1}


HOSTILE = {
    "wrong": "def double(x):\n    return x * 3\n",
    "no function": "x = 1\n",
    "no syntax": "def double(:\n",
    "exits at import": "import sys\nsys.exit(0)\n",
    "exits in a call": "import os\ndef double(x):\n    os._exit(0)\n",
    "kills its group": "import os, signal\nos.kill(0, signal.SIGKILL)\n",
    "kills its parent's group": "import os, signal\nos.killpg(os.getpgid(os.getppid()), 0)\nraise SystemExit\n",
    "hangs": "while True:\n    pass\n",
    "equals everything": (
        "class Any(str):\n    def __eq__(self, other):\n        return True\n"
        "    def __repr__(self):\n        return 'x'\n"
        "    __hash__ = str.__hash__\ndef double(x):\n    return Any()\n"
    ),
    "overrides builtins": "import builtins\nbuiltins.repr = lambda x: '4'\ndef double(x):\n    return 0\n",
    "floods": "import os\nos.write(1, b'x' * 10)\ndef double(x):\n    return 'x' * 3_000_000\n",
    "writes the reward": (
        "import os\nos.makedirs('LOGS', exist_ok=True)\n"
        "open('LOGS/reward.json', 'w').write('{\"reward\": 1}')\nopen('LOGS/reward.txt', 'w').write('1')\nos._exit(0)\n"
    ),
    "makes the reward a folder": "import os\nos.makedirs('LOGS/reward.json/x')\nos.makedirs('LOGS/reward.txt/x')\n",
    "reads the expected values": (
        "import json\nwant = iter(json.load(open('TESTS/expected.json')))\n"
        "class R:\n    def __repr__(self):\n        return next(want)\ndef double(x):\n    return R()\n"
    ),
    "reads its parent's descriptors": (
        "import glob, json, os\n"
        "for path in glob.glob(f'/proc/{os.getppid()}/fd/*') + glob.glob('/proc/self/fd/*'):\n"
        "    try:\n        data = json.load(open(path))\n    except Exception:\n        continue\n"
        "    if isinstance(data, list) and all(isinstance(x, str) for x in data):\n"
        "        want = iter(data)\n"
        "class R:\n    def __repr__(self):\n        return next(want)\ndef double(x):\n    return R()\n"
    ),
}


@pytest.mark.parametrize("module", HOSTILE.values(), ids=HOSTILE)
def test_a_wrong_or_hostile_module_earns_nothing_and_the_reward_is_still_written(tmp_path: Path, module: str) -> None:
    if "fd/*" in module and os.geteuid() == 0 and not WITHOUT_CAPABILITIES:
        pytest.skip("root may look into every process, and setpriv, which takes that from it, is not installed")
    assert grade(tmp_path, module) == {"reward": 0}


def test_a_process_left_behind_is_ended_before_the_reward_is_written(tmp_path: Path) -> None:
    module = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        open('LOGS.pid', 'w').write(str(os.getpid()))\n"
        "        time.sleep(2)\n"
        "        open('LOGS/reward.json', 'w').write('{\"reward\": 1}')\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "while not os.path.exists('LOGS.pid'):\n"
        "    time.sleep(0.01)\n"
    )
    assert grade(tmp_path, module) == {"reward": 0}
    pid = int((tmp_path / "logs.pid").read_text())
    time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def test_the_expected_values_are_gone_before_the_module_is_imported(tmp_path: Path) -> None:
    module = f"import os\nopen('LOGS.seen', 'w').write(str(os.path.exists('TESTS/expected.json')))\n{HONEST}"
    assert grade(tmp_path, module) == {"reward": 1}
    assert (tmp_path / "logs.seen").read_text() == "False"
