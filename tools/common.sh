# Functions shared by the scripts in this folder, which read this file with `source`.

# fail MESSAGE: print the message on stderr, exit with code 2.
fail() {
    printf 'suffixsvc: %s\n' "$*" >&2
    exit 2
}

# share_venv VENV: add the packages of .venv to VENV, after its own, so that nothing is built or installed twice.
share_venv() {
    "$1/bin/python" - .venv/bin/python <<'END'
import pathlib, subprocess, sys, sysconfig
query = "import sysconfig; print(sysconfig.get_path('purelib'))"
theirs = subprocess.run([sys.argv[1], "-c", query], capture_output=True, text=True, check=True).stdout.strip()
ours = pathlib.Path(sysconfig.get_path("purelib"))
(ours / "suffixsvc-venv.pth").write_text(f"import site; site.addsitedir({theirs!r})\n")
END
}

# Runs in a subshell, so that the trap removes the scratch folder at every exit.
require_compiler() (
    local compiler scratch
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    printf '#include <bit>\n#include <span>\n%s\n%s\n' \
        'static_assert(__cplusplus >= 202002L);' \
        'int main() { int a[2] = {1, 2}; return std::span<int>(a).size() == std::popcount(3u) ? 0 : 1; }' \
        >"$scratch/probe.cpp"
    for compiler in ${CXX:+"$CXX"} c++ g++ clang++; do
        if command -v "$compiler" >/dev/null &&
            "$compiler" -std=c++20 "$scratch/probe.cpp" -o "$scratch/probe" 2>"$scratch/log"; then
            return 0
        fi
    done
    fail "a C++20 compiler is needed (g++ 11 or clang 14, or newer); found" \
        "$( (c++ --version 2>/dev/null || echo none) | head -n 1)." \
        "Install one (Debian, Ubuntu: apt-get install g++), or name it with CXX=..."
)

# watch_ninja PID LOG: print the progress of a ninja build on stderr until it ends, read from its log: one updated
# line on a terminal, else a line every 30 seconds. Returns the build's exit status.
watch_ninja() {
    local pid=$1 log=$2 last shown="" tick=0 started=$SECONDS
    trap 'kill "$pid" 2>/dev/null; exit 130' INT TERM
    while kill -0 "$pid" 2>/dev/null; do
        last=$(grep -oE '\[[0-9]+/[0-9]+\]' "$log" | tail -n 1 || true)
        if [[ "$last" != "$shown" ]]; then
            if [[ -t 2 ]]; then
                printf '\r  compiled %s after %d s ' "$last" $((SECONDS - started)) >&2
                shown=$last
            elif (((SECONDS - started) / 30 > tick)); then
                tick=$(((SECONDS - started) / 30))
                printf '  compiled %s after %d s\n' "$last" $((SECONDS - started)) >&2
                shown=$last
            fi
        fi
        sleep 1
    done
    trap - INT TERM
    [[ -t 2 ]] && printf '\n' >&2
    wait "$pid" || return
    echo "  done after $((SECONDS - started)) s" >&2
}

# llama_flags: print the compiler flags that llama.cpp needs here: none, or those that leave out AMX where the
# compiler's AMX code crashes (tools/amx_probe.c).
llama_flags() {
    local probe status=0
    probe=$(mktemp)
    if "${CC:-cc}" -O2 -march=native -o "$probe" tools/amx_probe.c 2>/dev/null; then
        # in a subshell, whose report of a signal is not printed
        ("$probe"; exit) >/dev/null 2>&1 || status=$?
    fi
    rm -f "$probe"
    # 128 and more: ended by a signal
    ((status < 128)) || echo "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
}
