# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup browser demo test test-fast test-torch torture site results lint check format clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps 'py-tgb==2.3.0' # its evaluator is an oracle in the tests
	touch $(READY)

# the report is tested in a real browser; where none is and none can be installed, that test skips
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	  || { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -qqy chromium >/dev/null; } \
	  || echo "no chromium: the browser test will be skipped"

demo: $(READY)
	$(BIN)/dygmamba demo

TYPES := $(BIN)/basedpyright --level error
lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/codespell src tests docs examples site mkdocs.yml README.md CONTRIBUTING.md CHANGELOG.md

check: lint
	$(TYPES)

# types are checked beside the tests, because that takes one core for most of a minute
test: $(READY) browser lint
	@found=$$(mktemp); $(TYPES) >$$found 2>&1 & types=$$!; \
	echo "$(BIN)/pytest -n 2 --dist worksteal"; $(BIN)/pytest -n 2 --dist worksteal; tests=$$?; \
	wait $$types; types=$$?; echo "$(TYPES)"; cat $$found; rm $$found; [ $$tests = 0 ] && [ $$types = 0 ]

# tests of single functions and layers: no command in a process of its own, no browser, no compiler
FAST := core data nn ops sampling tasks
test-fast: $(READY)
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow and not e2e and not torture" $(addprefix tests/,$(FAST))

# the same tests with another torch, in an environment of its own; the oldest that is claimed is 2.11
TORCH := 2.11.0
test-torch:
	$(PYTHON) -m venv .venv-torch-$(TORCH)
	grep -v '^torch==' constraints.txt > .venv-torch-$(TORCH)/constraints.txt
	.venv-torch-$(TORCH)/bin/pip install --quiet -c .venv-torch-$(TORCH)/constraints.txt 'torch==$(TORCH)' -e '.[dev]'
	.venv-torch-$(TORCH)/bin/pytest -n 2

# the documentation as a site that opens from the disk, the API reference in it; NO_...: its maintainers' notice (decision 015)
site: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

# kills, power cuts, failing disks, flipped bits and fuzzed inputs, for so many seconds; seeds and a table are printed;
# then the files with tests that take too long for `make test`
SECONDS := 600
LONG := tests/e2e/test_demo.py tests/e2e/test_locales.py tests/api/test_runs.py tests/ops/test_numba_kernels.py
LONG += tests/test_goldens.py tests/api/test_register.py tests/test_examples.py tests/lab/test_benchmarks.py
LONG += tests/e2e/test_data_cli.py tests/e2e/test_processes.py tests/e2e/test_node_cli.py tests/lab/test_audit.py
LONG += tests/live/test_live_run.py # more simulated sequences of operations
LONG += tests/server/test_fuzz.py # 5,000 requests
LONG += tests/ops/test_scan_triton.py tests/ops/test_scan_cuda.py # all combinations
LONG += tests/sampling tests/engine/test_stream_scorer.py tests/engine/test_ranker.py # more examples of each property
torture: $(READY)
	DYGMAMBA_TORTURE=$(SECONDS) $(BIN)/pytest -s tests/torture $(LONG)

# docs/research/results.md out of docs/research/results/: the stored results and the text around them
results: $(READY)
	$(BIN)/python -m dygmamba.lab.results_page docs/research/results

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build dist
