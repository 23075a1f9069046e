# Every target sets up its requirements in .venv (once) and can be run repeatedly.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo gpu-smoke test test-disturbed interop check sanitize fuzz-segment fuzz-wire bench performance caches peers adapters adapters-vllm conformance reliability clean

VENV := .venv
BIN := $(VENV)/bin
CSRC := suffixsvc/core/csrc
CORE_FILES := $(shell find $(CSRC) -type f)
CXX_FILES := $(filter %.cpp %.h,$(CORE_FILES)) $(wildcard tests/core/native/*)
# An editable install lists its modules: it is repeated when a file was added to or removed from a folder.
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

setup: $(VENV)/.stamp-core $(VENV)/.stamp-llama  ## set up .venv, this package and llama.cpp (about 8 minutes, once)

# ------------------------------------------------------------------------------------------------- running

# make demo [SMALL=1] [QUICK=1] [RECORD=log.jsonl] [DEMO_ARGS='--questions 4']
demo: setup  ## run agents on a real model; SMALL=1 small model, QUICK=1 short, RECORD=file writes a log
	@$(BIN)/suffixsvc demo $(if $(filter-out 0,$(SMALL)),--small) $(if $(filter-out 0,$(QUICK)),--quick) \
	    $(if $(RECORD),--record "$(RECORD)") $(DEMO_ARGS)

# llama-cpp-python must have been built for the GPU (docs/gpu.md). MODEL=file.gguf DRAFT=file.gguf: other models.
gpu-smoke: setup  ## check GPU offload on this machine's GPU: probe, exactness, a short text (minutes)
	@$(if $(MODEL),,$(BIN)/suffixsvc models get qwen2.5-coder-1.5b >/dev/null)
	@$(BIN)/python tools/gpu_smoke.py $(or $(MODEL),qwen2.5-coder-1.5b) $(DRAFT)

# A missing small model is an error, because the tests that need it would be skipped.
# SUFFIXSVC_NO_MODEL=1 skips them, for machines that cannot download it.
# PYTEST_ARGS='-n0 -x' runs the tests sequentially in one process, for debugging.
test: setup  ## run every test (downloads a 98 MB model, once)
ifeq ($(filter-out 0,$(SUFFIXSVC_NO_MODEL)),)
	@$(BIN)/suffixsvc models get smollm2-135m >/dev/null || { \
	    echo "make test: the tests need the model smollm2-135m, which could not be downloaded (see above)." >&2; \
	    echo "SUFFIXSVC_NO_MODEL=1 make test runs all tests that do not need it." >&2; exit 2; }
	@tools/test.sh $(PYTEST_ARGS)
else
	@tools/test.sh -m "not model" $(PYTEST_ARGS)
endif

# No test may depend on speed. HOW=busy: spinning processes on every core; slow-disk: every fsync takes 50 ms longer;
# one-core: one core only. Each takes two to three times as long as `make test`.
test-disturbed: setup  ## run every test on a slowed-down machine; HOW='busy slow-disk one-core' (default: all three)
	@$(BIN)/suffixsvc models get smollm2-135m >/dev/null
	@for how in $(or $(HOW),busy slow-disk one-core); do \
	    echo "test-disturbed: $$how"; tools/test_disturbed.sh "$$how" $(PYTEST_ARGS); \
	done

# FULL=1 runs the long form (hours), whose figures are in docs/reliability.md, and then every other test in its long
# form (tests/support/long_form.py). ROWS='crashes soak' runs some rows, and nothing else.
reliability: setup  ## crash, starve, flood and attack a running service; a table at the end (FULL=1: hours)
	@RELIABILITY_FULL=$(or $(FULL),0) $(BIN)/python -m pytest -m reliability -v \
	    $(or $(foreach row,$(ROWS),tests/reliability/test_$(row).py),tests/reliability) $(PYTEST_ARGS)
	@$(if $(filter-out 0,$(FULL)),$(if $(ROWS),,RELIABILITY_FULL=1 tools/test.sh $(PYTEST_ARGS)))

# LLAMA_CPP_BIN=DIR uses the programs of an existing llama.cpp. JOBS=1 compiles one file at a time.
interop: setup  ## compare lookup caches with llama.cpp's own programs (built once, about 15 minutes)
	@bin=$$(tools/llama_tools.sh); $(BIN)/suffixsvc models get smollm2-135m >/dev/null; \
	    LLAMA_CPP_BIN="$$bin" $(BIN)/python -m pytest -m interop tests/interop $(PYTEST_ARGS)

# Words that no reader knows; the left side of a rename must not come back (tools/invented_words.txt).
WORDS_IN := '*.py' '*.pyi' '*.h' '*.cpp' '*.md' '*.proto' Makefile '*.sh' ':!CHANGELOG.md' ':!docs/performance.md' ':!suffixsvc/v1' \
    ':!bench/suffixsvc_bench/demo/database.py'
# pytest imports the modules of tests by their base names, which are therefore unique, apart from suites that are
# collected by themselves and what is not imported by its base name.
IMPORTED_BY_PATH := -not -name conftest.py -not -name __init__.py -not -path 'tests/support/*' \
    -not -path 'tests/conformance/*' -not -path 'tests/interop/*'
check: setup  ## lint, formats, types, import directions, links of the documentation, generated code
	@echo "ruff";          $(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check .
	@# one process: the workers of --num-workers are lost on a loaded machine
	@echo "mypy --strict"; $(BIN)/mypy
	@echo "mypy, tests";   $(BIN)/mypy --config-file tools/mypy_tests.toml
	@echo "test names";    ! find tests -name '*.py' $(IMPORTED_BY_PATH) | sed 's|.*/||' | sort | uniq -d | grep .
	@echo "import-linter"; $(BIN)/lint-imports && $(BIN)/lint-imports --config tools/import_cycles.toml
	@echo "clang-format";  $(BIN)/clang-format --dry-run -Werror $(CXX_FILES)
	@echo "glossary";      ! git grep -nwIE -f tools/invented_words.txt -- $(WORDS_IN)
	@echo "links";         $(BIN)/python -m pytest -q -n0 tests/packaging/test_links.py
	@echo "proto drift";   $(BIN)/python tools/gen_proto.py --check
	@echo "dashboard";     $(BIN)/python tools/gen_dashboard.py --check

# ThreadSanitizer cannot share a build with the others.
# Without precompiled headers: an include that a file lacks is an error here.
sanitize: $(VENV)/.stamp-core  ## run the core under AddressSanitizer, UndefinedBehaviourSanitizer, ThreadSanitizer
	@for kind in address,undefined thread; do \
	    echo "sanitize: $$kind"; \
	    $(BIN)/cmake -S $(CSRC) -B build/sanitize-$$kind -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	        -DSUFFIXSVC_BUILD_TESTS=ON -DSUFFIXSVC_SANITIZE=$$kind \
	        -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON >/dev/null; \
	    $(BIN)/cmake --build build/sanitize-$$kind --parallel 2 >/dev/null; \
	    scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; \
	    UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1 \
	        ./build/sanitize-$$kind/core_stress "$$scratch"; \
	done

# A mutant that crashes the reader stays in build/fuzz-segment/mutant.seg.
fuzz-segment: $(VENV)/.stamp-core  ## mutate segment files under AddressSanitizer; SECONDS=60 SEED=1
	@$(BIN)/cmake -S $(CSRC) -B build/sanitize-address,undefined -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	    -DSUFFIXSVC_BUILD_TESTS=ON -DSUFFIXSVC_SANITIZE=address,undefined >/dev/null
	@$(BIN)/cmake --build build/sanitize-address,undefined --parallel 2 --target fuzz_segment >/dev/null
	@mkdir -p build/fuzz-segment
	@UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 ./build/sanitize-address,undefined/fuzz_segment \
	    build/fuzz-segment $(or $(SECONDS),60) $(or $(SEED),1) tests/golden/segment/*.seg

# atheris has wheels for Linux and some versions of Python only, so it is installed on demand.
$(VENV)/.stamp-atheris: $(VENV)/.stamp-venv
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet "atheris>=3" || { \
	    echo "make fuzz-wire: atheris could not be installed (wheels: Linux, Python 3.11 to 3.13)" >&2; exit 2; }
	@touch $@

# An input that causes a failure stays in build/fuzz-wire; SAVE=1 writes the corpus back to tests/fuzz.
fuzz-wire: $(VENV)/.stamp-core $(VENV)/.stamp-atheris  ## fuzz the decoders of the wire format; SECONDS=60 SEED=1
	@$(BIN)/python tests/fuzz/fuzz_wire.py build/fuzz-wire -max_total_time=$(or $(SECONDS),60) \
	    -seed=$(or $(SEED),1) -rss_limit_mb=4096 -print_final_stats=1
	@$(if $(filter-out 0,$(SAVE)),$(BIN)/python tests/fuzz/fuzz_wire.py build/fuzz-wire --save)

bench: $(VENV)/.stamp-core  ## compare drafting methods on the project's own recorded log, without a model
	@$(BIN)/suffixsvc bench replay tests/data/recorded_demo.jsonl.gz

# make performance LOGS='logs/*.jsonl.gz' REPLAY='--tokenizer tokenizer.json.gz --max-tokens 60000'
# The variables of tools/performance.sh work too: STEPS, SIZES, OUT, FOLDER, PAGE.
performance: $(VENV)/.stamp-core  ## run all benchmarks and write docs/performance.md; LOGS='a.jsonl.gz ..' (hours)
	@tools/performance.sh $(or $(LOGS),tests/data/recorded_demo.jsonl.gz) $(REPLAY)

peers: $(VENV)/.stamp-core  ## build the peer of `suffixsvc bench replay` into .venv-peers
	@tools/peers.sh

# TORCH_INDEX=URL installs torch from another index; the default index has it for GPUs (gigabytes).
ADAPTER_EXAMPLES := llama_cpp_python huggingface
adapters: setup  ## test the adapters with the engines they are for, and run the examples (torch, 1 GB, once)
	@tools/adapters.sh
	@$(BIN)/suffixsvc models get smollm2-135m >/dev/null
	@.venv-adapters/bin/python -m pytest -m "adapters or not adapters" tests/adapters $(PYTEST_ARGS)
	@for example in $(ADAPTER_EXAMPLES); do \
	    echo; echo "python -m suffixsvc_adapters.examples.$$example"; \
	    .venv-adapters/bin/python -m suffixsvc_adapters.examples.$$example; \
	done

# TORCH_INDEX=URL installs torch for CPUs from another index.
adapters-vllm: $(VENV)/.stamp-core  ## run a real vLLM with its adapter, on CPUs (3 GB, once; minutes)
	@tools/adapters_vllm.sh
	@.venv-adapters-vllm/bin/python -m pytest -m adapters tests/adapters/test_vllm_engine.py $(PYTEST_ARGS)

# NODE=/path/to/node names another Node than that of the PATH. PYTEST_ARGS='-k compatcanary' runs a part.
conformance: setup  ## run OpenAI suites of others on a server process (Node 20; 1.1 GB model, once; minutes)
	@tools/conformance.sh
	@$(BIN)/suffixsvc models get qwen2.5-coder-1.5b >/dev/null
	@tools/conformance.sh run $(PYTEST_ARGS)

# The logs are recorded answers of a real model (`suffixsvc bench record`, hours; docs/benchmarks.md).
caches: $(VENV)/.stamp-core  ## rebuild the shipped caches from the logs in caches/recorded
	@$(BIN)/suffixsvc cache make sql json code --force

clean:  ## remove everything that was built or set up here, except downloaded models
	@rm -rf $(VENV) .venv-proto .venv-peers .venv-adapters .venv-adapters-vllm .venv-conformance build dist .demo .mypy_cache .ruff_cache .pytest_cache .import_linter_cache \
	    .hypothesis report.html *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
