#!/usr/bin/env bash
# Builds the peers that `suffixsvc bench replay` compares with into .venv-peers, an environment of their own:
# of Arctic Inference only the suffix decoding module, from its source distribution on the package index.
# Nothing of it is imported by this project: it runs in a process of its own (methods/arctic.py).
#
# Exit code 2 and one clear message when it cannot be built; everything else works without it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/common.sh

# The version that was compared, by content: pip refuses any other file.
package=arctic-inference
version=0.3.0
sha256=7f22e3e1b1071c6061c0d6951be17c0fb50b08d06d6e543144c8f52faba60a36
nanobind=2.9.2 # what that version names in its build requirements

venv=.venv-peers
build=build/peers
log=$build/build.log
pip=("$venv/bin/python" -m pip --disable-pip-version-check)

# Says what went wrong last, and where the whole story is.
broken() {
    tail -n 15 "$log" >&2
    fail "$1 (the whole story is in $log). bench replay works without this peer"
}

installed() {
    "$venv/bin/python" -c 'import arctic_inference.suffix_decoding' 2>/dev/null &&
        [[ "$(cat "$venv/.arctic-version" 2>/dev/null)" == "$version" ]]
}

if [[ -x "$venv/bin/python" ]] && installed; then
    echo "$package $version is in $venv"
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

# pip asks a source distribution for its metadata, and this one's setup.py imports torch (2 GB) at the top
# although the part wanted here does not use it: an empty module of that name, seen by this one command
# only, is enough.
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
    -DPython_EXECUTABLE="$PWD/$venv/bin/python" >>"$log" 2>&1 || broken "cmake found something missing"
"$venv/bin/cmake" --build "$build/cmake" >>"$log" 2>&1 || broken "the module could not be compiled"

# The package's own __init__ may want vLLM; of it only the folder of this module is needed.
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
mkdir -p "$site/arctic_inference"
cp -r "$build/src/arctic_inference/suffix_decoding" "$site/arctic_inference/"
cp "$build"/cmake/_C*.so "$site/arctic_inference/suffix_decoding/"
"$venv/bin/python" -c 'from arctic_inference.suffix_decoding import SuffixDecodingCache' >>"$log" 2>&1 ||
    broken "the module was built but cannot be imported"
echo "$version" >"$venv/.arctic-version"
echo "done: $package $version is in $venv"
