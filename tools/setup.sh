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

# has_llama PIN: whether the pinned version is installed, and can be run here.
has_llama() {
    "$venv/bin/python" - "$1" "$flags" <<'END' >/dev/null 2>&1
import sys
from importlib.metadata import version

import llama_cpp

pin, flags = sys.argv[1:]
has_amx = b"AMX_INT8 = 1" in llama_cpp.llama_print_system_info()
sys.exit(f"llama-cpp-python=={version('llama-cpp-python')}" != pin or (has_amx and "-mno-amx-int8" in flags))
END
}

# build_llama PIN [OPTION ...]: install it, with a progress display.
build_llama() {
    : >"$log"
    echo "(its output goes to $log)"
    CFLAGS="${CFLAGS:-} $flags" CXXFLAGS="${CXXFLAGS:-} $flags" \
        CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(getconf _NPROCESSORS_ONLN)} \
        "${pip[@]}" install --verbose "$@" >"$log" 2>&1 &
    if ! watch_ninja $! "$log"; then
        tail -n 25 "$log" >&2
        fail "llama-cpp-python could not be installed; the full log is $log"
    fi
}

install_llama() {
    local pin log flags
    require_compiler
    flags=$(llama_flags)
    pin=$("$venv/bin/python" -c 'import tomllib
print(tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["llama"][0])')
    if has_llama "$pin"; then
        echo "$pin is installed"
        return 0
    fi
    log=$venv/llama-build.log
    [[ -z "$flags" ]] || echo "llama.cpp is built without AMX: what ${CC:-cc} makes for it crashes on this processor"
    echo "installing $pin: it has no wheels; without a cached build this takes about 6 minutes on two cores"
    build_llama "$pin"
    if ! has_llama "$pin" && [[ -n "$flags" ]]; then
        echo "pip's cache has a build with AMX, which is removed"
        "${pip[@]}" cache remove llama_cpp_python >>"$log" 2>&1 || true
        build_llama --force-reinstall --no-deps "$pin"
    fi
    has_llama "$pin" || fail "$pin was installed, but cannot be used; the full log is $log"
}

case "${1:-}" in
    venv) make_venv ;;
    core) install_core ;;
    llama) install_llama ;;
    *) fail "usage: tools/setup.sh venv|core|llama" ;;
esac
