#!/usr/bin/env bash
# Builds the peer of `suffixsvc bench replay` into the separate environment .venv-peers: the suffix decoding module
# of Arctic Inference, from its source distribution on the package index. This project does not import it; it runs
# in a separate process (methods/arctic.py).
#
# Exit code 2 with one message if it cannot be built; everything else works without it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/common.sh

# The compared version, pinned by hash.
package=arctic-inference
version=0.3.0
sha256=7f22e3e1b1071c6061c0d6951be17c0fb50b08d06d6e543144c8f52faba60a36
nanobind=2.9.2 # from that version's build requirements

venv=.venv-peers
build=build/peers
log=$build/build.log
pip=("$venv/bin/python" -m pip --disable-pip-version-check)

# Prints the end of the log and the path of the log, and exits.
broken() {
    tail -n 15 "$log" >&2
    fail "$1 (the full log is $log). bench replay works without this peer"
}

installed() {
    "$venv/bin/python" -c 'import arctic_inference.suffix_decoding' 2>/dev/null &&
        [[ "$(cat "$venv/.arctic-version" 2>/dev/null)" == "$version" ]]
}

if [[ -x "$venv/bin/python" ]] && installed; then
    echo "$package $version is installed in $venv"
    exit 0
fi

python=.venv/bin/python
[[ -x "$python" ]] || fail "no .venv; run make setup first"
mkdir -p "$build"
: >"$log"
echo "building the suffix decoding module of $package $version into $venv (a minute) ..."
rm -rf "$venv"
"$python" -m venv "$venv" >>"$log" 2>&1 || broken "$python cannot create a virtual environment"
"${pip[@]}" install --quiet numpy "nanobind==$nanobind" cmake ninja setuptools wheel >>"$log" 2>&1 ||
    broken "the build tools could not be installed"

# pip reads the metadata of a source distribution by running its setup.py, which imports torch (2 GB), although the
# module built here does not use it. An empty module of that name, visible to this command only, is sufficient.
rm -rf "$build/sdist" "$build/stub" "$build/src" "$build/cmake"
mkdir -p "$build/sdist" "$build/stub" "$build/src"
: >"$build/stub/torch.py"
printf '%s==%s --hash=sha256:%s\n' "$package" "$version" "$sha256" >"$build/requirements.txt"
PYTHONPATH="$PWD/$build/stub" "${pip[@]}" download --quiet --no-deps --no-binary :all: --no-build-isolation \
    --require-hashes --requirement "$build/requirements.txt" --dest "$build/sdist" >>"$log" 2>&1 ||
    broken "$package $version could not be downloaded"
tar -xzf "$build"/sdist/*.tar.gz -C "$build/src" --strip-components 1 >>"$log" 2>&1 ||
    broken "the source distribution could not be unpacked"

"$venv/bin/cmake" -G Ninja -S "$build/src/csrc/suffix_decoding" -B "$build/cmake" \
    -DCMAKE_MAKE_PROGRAM="$PWD/$venv/bin/ninja" -DCMAKE_BUILD_TYPE=Release \
    -DPython_EXECUTABLE="$PWD/$venv/bin/python" >>"$log" 2>&1 || broken "cmake could not configure the build"
"$venv/bin/cmake" --build "$build/cmake" >>"$log" 2>&1 || broken "the module could not be compiled"

# Only the folder of this module is copied: the package's own __init__ may import vLLM.
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
mkdir -p "$site/arctic_inference"
cp -r "$build/src/arctic_inference/suffix_decoding" "$site/arctic_inference/"
cp "$build"/cmake/_C*.so "$site/arctic_inference/suffix_decoding/"
"$venv/bin/python" -c 'from arctic_inference.suffix_decoding import SuffixDecodingCache' >>"$log" 2>&1 ||
    broken "the module was built but cannot be imported"
echo "$version" >"$venv/.arctic-version"
echo "done: $package $version is in $venv"
