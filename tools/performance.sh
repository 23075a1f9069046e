#!/usr/bin/env bash
# Runs every benchmark and writes docs/performance.md and its plots from the results.
#
#   tools/performance.sh LOG... [options of bench replay]
#
# for example
#
#   tools/performance.sh logs/*.jsonl.gz --tokenizer tokenizer.json.gz --max-tokens 60000 --max-calls 1500 \
#       --agent sql=gpt-4 --starting-weights weights/
#
# Arctic Inference is compared if `make peers` built it. The machine should be idle otherwise. On two cores the run
# takes two to three hours. Environment:
#
#   STEPS="replay index segment rpc build decode publish"   a subset of these, and http, which takes hours; publish
#                                              reads the results in OUT and keeps the page's other sections
#   SIZES=1M,10M,100M                          sizes of bench index and bench segment
#   RPC="--sealed-tokens 100000000"            options of bench rpc
#   BUILD="--tokenizer tokenizer.json.gz"       options of bench build
#   DECODE="--target qwen2.5-coder-1.5b"       options of bench decode, which takes half an hour
#   HTTP="--llama-bin DIR"                     options of bench http; tools/llama_tools.sh prints the folder
#   OUT=build/performance                      folder of the JSON, the logs and the reports
#   FOLDER=/tmp                                parent of scratch folders of up to 10 GB (100M tokens)
#   PAGE=docs/performance.md                   the page
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

steps=${STEPS:-replay index segment rpc build decode publish}
sizes=${SIZES:-1M,10M,100M}
out=${OUT:-build/performance}
page=${PAGE:-docs/performance.md}
suffixsvc=.venv/bin/suffixsvc

fail() {
    printf 'performance.sh: %s\n' "$*" >&2
    exit 2
}

[[ -x "$suffixsvc" ]] || fail "no .venv; run make setup first"
[[ -d "${FOLDER:-/tmp}" ]] || fail "FOLDER must be a folder; got $FOLDER"
mkdir -p "$out"

# measure NAME OPTION..: run a benchmark; its result file is replaced only when the run is complete.
measure() {
    local name=$1
    shift
    printf '%s  %s\n' "$(date +%H:%M)" "bench $name" >&2
    "$suffixsvc" bench "$name" "$@" --json >"$out/.$name.json"
    mv "$out/.$name.json" "$out/$name.json"
}

for step in $steps; do
    case $step in
        replay)
            [[ $# -gt 0 ]] || fail "bench replay needs logs: tools/performance.sh LOG... (or exclude it with STEPS)"
            measure replay "$@" --report "$out/replay.html"
            ;;
        index) measure index --sizes "$sizes" --folder "${FOLDER:-/tmp}" --report "$out/index.html" ;;
        segment) measure segment --sizes "$sizes" --folder "${FOLDER:-/tmp}" ;;
        rpc)
            read -ra rpc <<<"${RPC:-}"
            measure rpc "${rpc[@]}"
            ;;
        build)
            read -ra build <<<"${BUILD:-}"
            measure build --folder "${FOLDER:-/tmp}" "${build[@]}"
            ;;
        decode)
            read -ra decode <<<"${DECODE:-}"
            measure decode "${decode[@]}"
            ;;
        http)
            read -ra http <<<"${HTTP:-}"
            measure http "${http[@]}"
            ;;
        publish) "$suffixsvc" bench publish "$out" --page "$page" --keep ;;
        *) fail "STEPS must be of replay, index, segment, rpc, build, decode, http and publish; got $step" ;;
    esac
done
