#!/usr/bin/env bash
# Sets up .venv for the Makefile, one step per call:
#
#   tools/setup.sh venv      a Python >= 3.11 and a virtual environment in .venv
#   tools/setup.sh core      a C++20 compiler, the build tools, this package (editable)
#   tools/setup.sh llama     llama-cpp-python, as pinned in pyproject.toml (built from source, minutes)
#
# Exit code 2 with one message if the machine lacks a requirement.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/common.sh

venv=.venv
pip=("$venv/bin/python" -m pip --disable-pip-version-check)

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

# find_python: print $PYTHON if it is set, else the first Python that is new enough.
find_python() {
    local candidate
    if [[ -n "${PYTHON:-}" ]]; then
        command -v "$PYTHON" >/dev/null || fail "PYTHON must be a command; got $PYTHON"
        is_new_enough "$PYTHON" ||
            fail "Python 3.11 or newer is needed; PYTHON=$PYTHON is $("$PYTHON" -V 2>&1)"
        echo "$PYTHON"
        return
    fi
    for candidate in python3 python3.14 python3.13 python3.12 python3.11 python; do
        if command -v "$candidate" >/dev/null && is_new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    fail "Python 3.11 or newer is needed; found $( (python3 -V || echo none) 2>/dev/null)." \
        "Install one, or name it: make PYTHON=/path/to/python3.12"
}

make_venv() {
    local python
    python=$(find_python)
    if [[ -x "$venv/bin/python" ]] && is_new_enough "$venv/bin/python"; then
        echo "using $venv ($("$venv/bin/python" -V))"
    else
        echo "creating $venv with $("$python" -V)"
        rm -rf "$venv"
        "$python" -m venv "$venv" ||
            fail "$python cannot create virtual environments." \
                "Install its venv module (Debian, Ubuntu: apt-get install python3-venv)"
    fi
    "${pip[@]}" --version >/dev/null 2>&1 || fail "$venv has no pip. Delete $venv and try again"
    # that of Python 3.11 takes three times as long to choose the versions of the dependencies
    "${pip[@]}" install --quiet --upgrade pip || echo "going on with $("${pip[@]}" --version)"
}

install_core() {
    require_compiler
    echo "installing suffixsvc and its dependencies into $venv (a minute or two) ..."
    # The build tools are installed in the environment instead of pip's temporary one: the build folder stays
    # valid, and a changed source file is rebuilt in seconds.
    "${pip[@]}" install --quiet "scikit-build-core>=1.1" "nanobind>=3.1" cmake ninja
    # --no-compile: most of their modules are never imported, the others are compiled when they are
    "${pip[@]}" install --quiet --no-compile --no-build-isolation --editable '.[server,text,caches,cluster,structured,openai,examples,dev]'
}

install_llama() {
    local pin log
    pin=$("$venv/bin/python" -c 'import tomllib
print(tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["llama"][0])')
    if "$venv/bin/python" -c "from importlib.metadata import version
import llama_cpp, sys
sys.exit(f'llama-cpp-python=={version(\"llama-cpp-python\")}' != '$pin')" >/dev/null 2>&1; then
        echo "$pin is installed"
        return 0
    fi
    require_compiler
    log=$venv/llama-build.log
    echo "installing $pin: it has no wheels; without a cached build this takes about 6 minutes on two cores"
    : >"$log"
    echo "(its output goes to $log)"
    CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(getconf _NPROCESSORS_ONLN)} \
        "${pip[@]}" install --verbose "$pin" >"$log" 2>&1 &
    if ! watch_ninja $! "$log"; then
        tail -n 25 "$log" >&2
        fail "llama-cpp-python could not be installed; the full log is $log"
    fi
}

case "${1:-}" in
    venv) make_venv ;;
    core) install_core ;;
    llama) install_llama ;;
    *) fail "usage: tools/setup.sh venv|core|llama" ;;
esac
