# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
USER_READY := .venv/.ready-user
READY := .venv/.ready
INSTALL := $(BIN)/pip install --disable-pip-version-check -c constraints.txt

.PHONY: setup demo check test test-fast goldens torture engines site results release-check

# the package alone: all that `make demo` needs
$(USER_READY): pyproject.toml constraints.txt
	@echo "installing the package into .venv; torch is the largest download, so this may take a few minutes"
	$(PYTHON) -m venv .venv
	$(INSTALL) -e .
	touch $(USER_READY)

# the development tools beside it
setup: $(READY)

$(READY): $(USER_READY)
	@echo "installing the development tools into .venv; a few minutes more"
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1' # the first with --group
	$(INSTALL) -e '.[onnx,serve,tune]' --group dev
	$(INSTALL) --no-deps 'py-tgb==2.3.0' # its evaluator is an oracle in the tests
	touch $(READY)

demo: $(USER_READY)
	$(BIN)/dygmamba demo

# the report is tested in a real browser; where none is and none can be installed, that test skips
define INSTALL_BROWSER
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	  || { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -qqy chromium >/dev/null; } \
	  || echo "no chromium: the browser test will be skipped"
endef

TYPES := $(BIN)/basedpyright --level error
define LINT
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/codespell src tests docs examples release site mkdocs.yml *.md
endef

check: $(READY)
	$(LINT)
	$(TYPES)

# types are checked beside the tests, because that takes one core for most of a minute;
# `make test OPTIONS=--cov` also shows which lines the tests run
WORKERS := 2
PYTEST := $(BIN)/pytest -n $(WORKERS) --dist worksteal --ignore tests/engines
OPTIONS :=
test: $(READY)
	$(INSTALL_BROWSER)
	$(LINT)
	@found=$$(mktemp); $(TYPES) >$$found 2>&1 & types=$$!; \
	echo "$(PYTEST) $(OPTIONS)"; $(PYTEST) $(OPTIONS); tests=$$?; \
	wait $$types; types=$$?; echo "$(TYPES)"; cat $$found; rm $$found; [ $$tests = 0 ] && [ $$types = 0 ]

# tests of single functions and layers: no command in a process of its own, no browser, no compiler
FAST := core data nn ops history tasks
test-fast: $(READY)
	$(PYTEST) -m "not slow and not e2e and not torture" $(addprefix tests/,$(FAST))

# what a commit computes against what the working tree computes, to the last bit: make goldens AT=COMMIT
AT := HEAD
goldens: $(READY)
	$(BIN)/python tests/compare_goldens.py $(AT)

# the documentation as a site that opens from the disk, the API reference in it; NO_...: its maintainers' notice (decision 015)
site: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

# kills, power cuts, failing disks, flipped bits and fuzzed inputs, for so many seconds; seeds and a table are printed;
# then the files with tests that take too long for `make test`
SECONDS := 600
LONG := tests/e2e/test_demo.py tests/e2e/test_locales.py tests/api/test_runs.py tests/ops/test_numba_kernels.py
LONG += tests/test_goldens.py tests/api/test_register.py tests/test_examples.py tests/benchmarks
LONG += tests/e2e/test_data_cli.py tests/e2e/test_processes.py tests/e2e/test_node_cli.py tests/audit/test_audit.py
LONG += tests/runs/test_export.py # both formats
LONG += tests/live/test_live_run.py # more simulated sequences of operations
LONG += tests/server/test_fuzz.py # 5,000 requests
LONG += tests/ops/test_scan_triton.py tests/ops/test_scan_cuda.py # all combinations
LONG += tests/history tests/engine/test_stream_scorer.py tests/engine/test_ranker.py # more examples of each property
torture: $(READY)
	$(INSTALL_BROWSER)
	DYGMAMBA_TORTURE=$(SECONDS) $(BIN)/pytest -s tests/torture $(LONG)

# scoring on Ray and Spark (which needs Java 17) and training on torchrun, each with a worker killed half-way
engines: $(READY)
	$(INSTALL) -e '.[ray,spark]'
	$(BIN)/pytest tests/engines

# docs/research/results.md out of docs/research/results/: the stored results and the text around them
results: $(READY)
	$(BIN)/python -m research.results_page docs/research/results

# everything that a release needs, sdist and wheel in dist/ too; ends with a list of what is missing, or of the checks
# named in ONLY alone
release-check: check site
	rm -rf dist
	$(INSTALL) --quiet --group release
	$(BIN)/python -m build --outdir dist
	$(BIN)/python release/check.py $(addprefix --only ,$(ONLY)) $(if $(TAG),--tag $(TAG))
