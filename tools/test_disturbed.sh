#!/usr/bin/env bash
# Runs the tests on a machine that is slowed down on purpose: no test may depend on speed.
#
#   tools/test_disturbed.sh busy|slow-disk|one-core [pytest's arguments]
#
#   busy        one spinning process per core
#   slow-disk   every fsync takes SLOW_DISK_MS (50) milliseconds longer
#   one-core    only the first core that this process may use, and therefore one worker
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/common.sh

how=${1:-}
[[ $# -eq 0 ]] || shift
command=(tools/test.sh "$@")

case "$how" in
    busy)
        spinning=()
        trap 'kill "${spinning[@]}" 2>/dev/null || true' EXIT
        for ((i = 0; i < $(getconf _NPROCESSORS_ONLN); i++)); do
            (while :; do :; done) &
            spinning+=($!)
        done
        "${command[@]}"
        ;;
    slow-disk)
        require_compiler
        shim=$(mktemp -d)
        trap 'rm -rf "$shim"' EXIT
        "${CC:-cc}" -shared -fPIC -O1 -o "$shim/slow_disk.so" tests/support/slow_disk.c -ldl
        LD_PRELOAD="$shim/slow_disk.so${LD_PRELOAD:+:$LD_PRELOAD}" "${command[@]}"
        ;;
    one-core)
        first=$(.venv/bin/python -c 'import os; print(min(os.sched_getaffinity(0)))')
        taskset -c "$first" "${command[@]}"
        ;;
    *) fail "usage: tools/test_disturbed.sh busy|slow-disk|one-core [pytest's arguments]" ;;
esac
