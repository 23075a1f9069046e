#!/usr/bin/env bash
# Runs the tests: `make test`, and tools/test_disturbed.sh.
#
#   tools/test.sh [pytest's arguments]
#
# The files of tests are shared out among as many workers as there are cores (tests/conftest.py says how many);
# the tests of a file stay together, as they share what is costly to make. -n0 runs all of them in this process,
# one after the other and with their output (-s) on the terminal; --pdb does so by itself.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

exec .venv/bin/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder "$@"
