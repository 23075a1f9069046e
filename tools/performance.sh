#!/usr/bin/env bash
# Runs every benchmark and writes docs/performance.md and its plots from what they measured.
#
#   tools/performance.sh LOG... [options of bench replay]
#
# for example
#
#   tools/performance.sh logs/*.jsonl.gz --tokenizer tokenizer.json.gz --max-tokens 60000 --max-calls 1500 \
#       --agent sql=gpt-4 --starting-weights weights/
#
# Arctic Inference is compared where `make peers` built it. The machine should do nothing else: on two cores all of it
# takes two to three hours. Environment:
#
#   STEPS="replay index segment rpc build decode publish"   only some of them; publish takes what lies in OUT, and
#                                              leaves the page's other sections as they are
#   SIZES=1M,10M,100M                          of bench index and bench segment
#   BUILD="--tokenizer tokenizer.json.gz"       options of bench build
#   DECODE="--target qwen2.5-coder-1.5b"       options of bench decode, which takes half an hour
#   OUT=build/performance                      where the JSON, the logs and the reports go
#   FOLDER=/tmp                                where folders of up to 10 GB are made (100M tokens)
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
[[ -d "${FOLDER:-/tmp}" ]] || fail "FOLDER=$FOLDER is no folder"
mkdir -p "$out"

# Measures into a file that appears when it is whole: a run that was broken off leaves the last one.
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
            [[ $# -gt 0 ]] || fail "bench replay needs logs: tools/performance.sh LOG... (or leave it out: STEPS)"
            measure replay "$@" --report "$out/replay.html"
            ;;
        index) measure index --sizes "$sizes" --folder "${FOLDER:-/tmp}" --report "$out/index.html" ;;
        segment) measure segment --sizes "$sizes" --folder "${FOLDER:-/tmp}" ;;
        rpc) measure rpc ;;
        build)
            read -ra build <<<"${BUILD:-}"
            measure build --folder "${FOLDER:-/tmp}" "${build[@]}"
            ;;
        decode)
            read -ra decode <<<"${DECODE:-}"
            measure decode "${decode[@]}"
            ;;
        publish) "$suffixsvc" bench publish "$out" --page "$page" --keep ;;
        *) fail "no step $step; there are replay, index, segment, rpc, build, decode and publish" ;;
    esac
done
