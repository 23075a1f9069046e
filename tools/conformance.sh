#!/usr/bin/env bash
# Sets up the requirements of `make conformance`, which `make test` does not need:
#
#   .venv-conformance      LangChain's standard tests, in an environment that also sees the packages of .venv (which
#                          has llm-comply and the frameworks of the examples: extras dev and examples)
#   build/conformance      compatcanary, for Node 20 or newer
#
#   tools/conformance.sh          set up
#   tools/conformance.sh run ..   run the suites with pytest's arguments; only loopback can be reached, where the
#                                 machine lets this user make a network namespace
#
# NODE=/path/to/node names another Node than that of the PATH. Exit code 2 with one message if something is
# unavailable.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/common.sh

langchain=langchain-tests==1.1.9
compatcanary=0.2.2
integrity=sha512-16AofE9bptzJHx4hGJs7KYAy8QvRGz2wpAcIB8Wc017o/+H0dZ9//AT1ywd3kNOC/5dkXqQnblsFwI7YqN/jSA==

venv=.venv-conformance
build=build/conformance
log=$build/setup.log
stamp="$langchain compatcanary $compatcanary"
node=${NODE:-node}

# Prints the end of the log and the path of the log, and exits.
broken() {
    tail -n 15 "$log" >&2
    fail "$1 (the full log is $log). Only \`make conformance\` needs it"
}

require_node() {
    command -v "$node" >/dev/null ||
        fail "Node 20 or newer is needed for compatcanary, and there is no $node." \
            "Install it (Debian, Ubuntu: apt-get install nodejs npm), or name it with NODE=/path/to/node"
    "$node" -e 'process.exit(process.versions.node.split(".")[0] < 20 ? 1 : 0)' ||
        fail "Node 20 or newer is needed for compatcanary; found $("$node" --version)." \
            "Name a newer one with NODE=/path/to/node"
    command -v npm >/dev/null ||
        fail "npm is needed to install compatcanary. Install it (Debian, Ubuntu: apt-get install npm)"
}

set_up() {
    [[ -x .venv/bin/python ]] || fail "no .venv; run make setup first"
    require_node
    if [[ "$(cat "$build/VERSION" 2>/dev/null)" == "$stamp" ]] &&
        "$venv/bin/python" -c 'import langchain_tests, suffixsvc' 2>/dev/null; then
        return
    fi
    mkdir -p "$build"
    rm -f "$build/VERSION"
    : >"$log"
    echo "installing $langchain into $venv (details in $log) ..."
    rm -rf "$venv"
    .venv/bin/python -m venv "$venv" >>"$log" 2>&1 || broken ".venv/bin/python cannot create a virtual environment"
    share_venv "$venv" >>"$log" 2>&1 || broken ".venv could not be added to $venv"
    "$venv/bin/python" -m pip --disable-pip-version-check install "$langchain" >>"$log" 2>&1 ||
        broken "$langchain could not be installed"
    echo "installing compatcanary $compatcanary into $build ..."
    npm install --prefix "$build" --ignore-scripts --no-fund --no-audit "compatcanary@$compatcanary" >>"$log" 2>&1 ||
        broken "compatcanary $compatcanary could not be installed"
    grep -q "\"$integrity\"" "$build/node_modules/.package-lock.json" ||
        broken "compatcanary $compatcanary has another content than $integrity"
    echo "$stamp" >"$build/VERSION"
}

# alone COMMAND..: run it in a network namespace that has a loopback interface only.
alone() {
    if ! unshare --user --map-root-user --net true 2>/dev/null; then
        echo "conformance: no network namespace here; only the sockets of pytest's process are closed" >&2
        exec "$@"
    fi
    exec unshare --user --map-root-user --net -- "$venv/bin/python" -c '
import fcntl, os, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    fcntl.ioctl(s, 0x8914, struct.pack("16sh", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
os.execvp(sys.argv[1], sys.argv[1:])' "$@"
}

case "${1:-}" in
    "") set_up ;;
    run)
        shift
        export NODE=$node COMPATCANARY=$PWD/$build/node_modules/compatcanary/src/cli.js
        # langchain-tests wants one event loop for all of its tests
        alone "$venv/bin/python" -m pytest -n0 -m conformance tests/conformance --allow-hosts=127.0.0.1 \
            -o asyncio_mode=auto -o asyncio_default_fixture_loop_scope=session \
            -o asyncio_default_test_loop_scope=session "$@"
        ;;
    *) fail "usage: tools/conformance.sh [run ARGUMENTS..]" ;;
esac
