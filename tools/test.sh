#!/usr/bin/env bash
# Runs the tests, for `make test` and tools/test_disturbed.sh.
#
#   tools/test.sh [pytest's arguments]
#
# The test files are distributed over workers, two per core (tests/conftest.py). The tests of a file
# run in one worker, because they share expensive fixtures. -n0 runs all tests sequentially in this process, so
# that -s shows their output; --pdb implies it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Without bytecode, each worker and each of the several hundred processes that the tests start would compile
# all modules of this package again. It stays in the ignored folders __pycache__, which `make clean` removes.
unset PYTHONDONTWRITEBYTECODE

exec .venv/bin/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder "$@"
