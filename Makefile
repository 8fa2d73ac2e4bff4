# Two commands on a fresh machine: `make demo`, `make test`.
PY := .venv/bin/python
# Tests side by side, a file's by one process: an engine's start keeps one core busy, a server's test waits for most of
# its time. vLLM would bind every engine to the same one, and threads that wait for each other on two cores only spin.
SIDE_BY_SIDE := OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind $(PY) -m pytest -q --durations=15 --dist loadfile --no-loadscope-reorder
.PHONY: setup demo check test browser endurance bench clean

setup:            ## Python environment from the pinned lock (ACCELERATOR=cpu|gpu; found by itself)
	@bash infra/setup.sh $(ACCELERATOR)

demo: setup       ## An archive of installed packages' texts: nightly digest and bulk answers, with evidence
	@$(PY) -m pipelines.demo build/demo

check: setup      ## Lint, strict types, unit tests
	@$(PY) -m ruff check .
	@$(PY) -m mypy
	@$(SIDE_BY_SIDE) -n 2 tests/unit

browser: setup    ## A headless Chromium for the report's test
	@bash infra/browser.sh

test: setup browser   ## Everything
	@$(PY) -m ruff check .
	@$(PY) -m mypy
	@$(SIDE_BY_SIDE) -n 3 tests

endurance: setup  ## Kill runs at random moments, ten times a target scripted, twice with vLLM
	@$(PY) -m tests.endurance --engine scripted --times 10
	@$(PY) -m tests.endurance --engine vllm --times 2 --set flush_seconds=0.5

bench: setup      ## The measured numbers of docs/results.md
	@$(PY) -m benchmarks.ceiling
	@$(PY) -m benchmarks.linear
	@$(PY) -m benchmarks.memory

clean:            ## Remove what make has made, but not stores
	rm -rf .venv build .mypy_cache .ruff_cache .pytest_cache .hypothesis
