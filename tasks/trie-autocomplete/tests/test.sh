#!/bin/sh
# Paths are settable so that the tests of this repository can run a task without a sandbox.
export APP="${APP:-/app}" PYTHONDONTWRITEBYTECODE=1
tests="${TESTS:-/tests}" logs="${LOGS:-/logs/verifier}"
mkdir -p "$logs"
reward=0
if python3 "$tests/test_hidden.py"; then reward=1; fi
rm -rf "$logs/reward.json"
echo "$reward" > "$logs/reward.txt"
