# Every target sets up what it needs in .venv (once) and can be run again at any time.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-disturbed interop check sanitize fuzz-segment fuzz-wire bench performance caches peers adapters adapters-vllm clean

VENV := .venv
BIN := $(VENV)/bin
CSRC := suffixsvc/core/csrc
CORE_FILES := $(shell find $(CSRC) -type f)
CXX_FILES := $(filter %.cpp %.h,$(CORE_FILES))
# An editable install knows its modules by name: a folder that gained or lost a file is installed again.
FOLDERS := $(addsuffix /.,$(shell find suffixsvc clients caches bench -type d -not -name __pycache__))

help:  ## show this
	@echo "suffixsvc: what \`make TARGET\` can do"
	@echo
	@sed -nE 's/^([a-z-]+):.*## (.*)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14
	@echo
	@echo "Variables: PYTHON=python3.12  CXX=clang++  PYTEST_ARGS='-k store'  SUFFIXSVC_HOME=/where/models/go"

# ---------------------------------------------------------------------------------------------- setting up

$(VENV)/.stamp-venv: tools/setup.sh
	@tools/setup.sh venv
	@touch $@

$(VENV)/.stamp-core: $(VENV)/.stamp-venv pyproject.toml $(CORE_FILES) $(FOLDERS)
	@tools/setup.sh core
	@touch $@

$(VENV)/.stamp-llama: $(VENV)/.stamp-core
	@tools/setup.sh llama
	@touch $@

setup: $(VENV)/.stamp-core $(VENV)/.stamp-llama  ## only set up: .venv, this package, llama.cpp (about 8 minutes, once)

# ------------------------------------------------------------------------------------------------- running

# make demo [SMALL=1] [QUICK=1] [RECORD=log.jsonl] [DEMO_ARGS='--questions 4']
demo: setup  ## watch agents on a real model get faster; SMALL=1 tiny model, QUICK=1 short, RECORD=file keeps a log
	@$(BIN)/suffixsvc demo $(if $(filter-out 0,$(SMALL)),--small) $(if $(filter-out 0,$(QUICK)),--quick) \
	    $(if $(RECORD),--record "$(RECORD)") $(DEMO_ARGS)

# Without the small model the tests that need one would prove nothing, so its absence is an error.
# SUFFIXSVC_NO_MODEL=1 leaves them out, for machines that cannot get it.
# PYTEST_ARGS='-n0 -x' runs them one after the other in one process, for debugging.
test: setup  ## run every test (gets a 98 MB model, once)
ifeq ($(filter-out 0,$(SUFFIXSVC_NO_MODEL)),)
	@$(BIN)/suffixsvc models get smollm2-135m >/dev/null || { \
	    echo "make test: the tests need the model smollm2-135m, which could not be had (see above)." >&2; \
	    echo "SUFFIXSVC_NO_MODEL=1 make test runs all tests that do without it." >&2; exit 2; }
	@tools/test.sh $(PYTEST_ARGS)
else
	@tools/test.sh -m "not model" $(PYTEST_ARGS)
endif

# No test may depend on speed. HOW=busy: beside spinning processes; slow-disk: every fsync takes 50 ms longer;
# one-core: on one core. Each takes two to three times as long as `make test`.
test-disturbed: setup  ## run every test on a disturbed machine; HOW='busy slow-disk one-core' (default: all three)
	@$(BIN)/suffixsvc models get smollm2-135m >/dev/null
	@for how in $(or $(HOW),busy slow-disk one-core); do \
	    echo "test-disturbed: $$how"; tools/test_disturbed.sh "$$how" $(PYTEST_ARGS); \
	done

# LLAMA_CPP_BIN=DIR takes the programs of a llama.cpp that is there. JOBS=1 compiles one file at a time.
interop: setup  ## hold lookup caches against llama.cpp's own programs (built once, about 15 minutes)
	@bin=$$(tools/llama_tools.sh); $(BIN)/suffixsvc models get smollm2-135m >/dev/null; \
	    LLAMA_CPP_BIN="$$bin" $(BIN)/python -m pytest -m interop tests/interop $(PYTEST_ARGS)

check: setup  ## lint, formats, types, import directions, generated code
	@echo "ruff";          $(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check .
	@echo "mypy --strict"; $(BIN)/mypy
	@echo "import-linter"; $(BIN)/lint-imports
	@echo "clang-format";  $(BIN)/clang-format --dry-run -Werror $(CXX_FILES)
	@echo "proto drift";   $(BIN)/python tools/gen_proto.py --check

# ThreadSanitizer cannot share a build with the others.
sanitize: $(VENV)/.stamp-core  ## run the core under AddressSanitizer, UndefinedBehaviourSanitizer, ThreadSanitizer
	@for kind in address,undefined thread; do \
	    echo "sanitize: $$kind"; \
	    $(BIN)/cmake -S $(CSRC) -B build/sanitize-$$kind -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	        -DSUFFIXSVC_BUILD_TESTS=ON -DSUFFIXSVC_SANITIZE=$$kind >/dev/null; \
	    $(BIN)/cmake --build build/sanitize-$$kind --parallel 2 >/dev/null; \
	    UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1 \
	        ./build/sanitize-$$kind/core_stress; \
	    UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1 \
	        ./build/sanitize-$$kind/core_steps; \
	    scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; \
	    UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1 \
	        ./build/sanitize-$$kind/segment_stress "$$scratch"; \
	    UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1 \
	        ./build/sanitize-$$kind/union_stress "$$scratch"; \
	    UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1 \
	        ./build/sanitize-$$kind/ngram_stress "$$scratch"; \
	    UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1 \
	        ./build/sanitize-$$kind/words_stress; \
	done

# A mutant that crashes the reader stays in build/fuzz-segment/mutant.seg.
fuzz-segment: $(VENV)/.stamp-core  ## mutate segment files under AddressSanitizer; SECONDS=60 SEED=1
	@$(BIN)/cmake -S $(CSRC) -B build/sanitize-address,undefined -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	    -DSUFFIXSVC_BUILD_TESTS=ON -DSUFFIXSVC_SANITIZE=address,undefined >/dev/null
	@$(BIN)/cmake --build build/sanitize-address,undefined --parallel 2 --target fuzz_segment >/dev/null
	@mkdir -p build/fuzz-segment
	@UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 ./build/sanitize-address,undefined/fuzz_segment \
	    build/fuzz-segment $(or $(SECONDS),60) $(or $(SEED),1) tests/golden/segment/*.seg

# atheris has wheels for Linux and some versions of Python only: it is installed when it is asked for.
$(VENV)/.stamp-atheris: $(VENV)/.stamp-venv
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet "atheris>=3" || { \
	    echo "make fuzz-wire: atheris could not be installed (wheels: Linux, Python 3.11 to 3.13)" >&2; exit 2; }
	@touch $@

# An input that is a finding stays in build/fuzz-wire; SAVE=1 writes the corpus back to tests/fuzz.
fuzz-wire: $(VENV)/.stamp-core $(VENV)/.stamp-atheris  ## fuzz the decoders of the wire; SECONDS=60 SEED=1
	@$(BIN)/python tests/fuzz/fuzz_wire.py build/fuzz-wire -max_total_time=$(or $(SECONDS),60) \
	    -seed=$(or $(SEED),1) -rss_limit_mb=4096 -print_final_stats=1
	@$(if $(filter-out 0,$(SAVE)),$(BIN)/python tests/fuzz/fuzz_wire.py build/fuzz-wire --save)

bench: $(VENV)/.stamp-core  ## compare drafting methods on the project's own recorded log, without a model
	@$(BIN)/suffixsvc bench replay tests/data/recorded_demo.jsonl.gz

# make performance LOGS='logs/*.jsonl.gz' REPLAY='--tokenizer tokenizer.json.gz --max-tokens 60000'
# The variables of tools/performance.sh work too: STEPS, SIZES, OUT, FOLDER, PAGE.
performance: $(VENV)/.stamp-core  ## run all benchmarks and write docs/performance.md; LOGS='a.jsonl.gz ..' (hours)
	@tools/performance.sh $(or $(LOGS),tests/data/recorded_demo.jsonl.gz) $(REPLAY)

peers: $(VENV)/.stamp-core  ## build what `suffixsvc bench replay` can compare with, into .venv-peers
	@tools/peers.sh

# TORCH_INDEX=URL takes torch from another index; the package index has it for GPUs (gigabytes).
ADAPTER_EXAMPLES := llama_cpp_python huggingface vllm_proposer sglang_ngram trtllm_endpoint
adapters: setup  ## hold the adapters against the engines they are for, and run their examples (torch, 1 GB, once)
	@tools/adapters.sh
	@$(BIN)/suffixsvc models get smollm2-135m >/dev/null
	@.venv-adapters/bin/python -m pytest -m "adapters or not adapters" tests/adapters $(PYTEST_ARGS)
	@for example in $(ADAPTER_EXAMPLES); do \
	    echo; echo "python -m suffixsvc_driver.adapters.examples.$$example"; \
	    .venv-adapters/bin/python -m suffixsvc_driver.adapters.examples.$$example; \
	done

# TORCH_INDEX=URL takes torch for CPUs from another index.
adapters-vllm: $(VENV)/.stamp-core  ## run a real vLLM with its adapter, on CPUs (3 GB, once; minutes)
	@tools/adapters_vllm.sh
	@.venv-adapters-vllm/bin/python -m pytest -m adapters tests/adapters/test_vllm_engine.py $(PYTEST_ARGS)

# The logs are answers of a real model, recorded with `suffixsvc bench record` (hours; docs/benchmarks.md).
caches: $(VENV)/.stamp-core  ## make the caches that come along again from the logs in caches/recorded
	@$(BIN)/suffixsvc cache make sql json code --force

clean:  ## remove everything that was built or set up here (downloaded models stay)
	@rm -rf $(VENV) .venv-proto .venv-peers .venv-adapters .venv-adapters-vllm build dist .demo .mypy_cache .ruff_cache .pytest_cache .import_linter_cache \
	    .hypothesis report.html *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
