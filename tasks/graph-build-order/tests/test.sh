#!/bin/sh
# Paths are settable so that the tests of this repository can run a task without a sandbox.
export APP="${APP:-/app}"
tests="${TESTS:-/tests}"
exec python3 -I -S -B "$tests/judge.py" "$tests/test_hidden.py" "${LOGS:-/logs/verifier}"
