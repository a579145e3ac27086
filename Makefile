# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
USER_READY := .venv/.ready-user
READY := .venv/.ready
INSTALL := $(BIN)/pip install --disable-pip-version-check -c constraints.txt

.PHONY: setup setup-demo browser demo test test-fast test-torch test-lowest coverage torture site results lint check
.PHONY: format build lock release-check clean

# the package alone: all that `make demo` needs
setup-demo: $(USER_READY)

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

# the report is tested in a real browser; where none is and none can be installed, that test skips
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	  || { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -qqy chromium >/dev/null; } \
	  || echo "no chromium: the browser test will be skipped"

demo: $(USER_READY)
	$(BIN)/dygmamba demo

TYPES := $(BIN)/basedpyright --level error
lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/codespell src tests docs examples release site mkdocs.yml *.md

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
	.venv-torch-$(TORCH)/bin/pip install --quiet --upgrade 'pip>=25.1'
	.venv-torch-$(TORCH)/bin/pip install -c .venv-torch-$(TORCH)/constraints.txt 'torch==$(TORCH)' -e '.[onnx,serve,tune]' --group dev
	.venv-torch-$(TORCH)/bin/pytest -n 2

# the oldest versions that pyproject.toml claims, in an environment of its own; torch has a target above, because its
# oldest build may not be at hand: `make test-lowest LOWEST_TORCH=2.11.0` lowers it too
LOWEST_TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)
LOWEST := tests/core tests/data/test_readers.py tests/data/test_table_files.py tests/data/test_tensor_file.py
LOWEST += tests/nn tests/tasks/test_metrics.py tests/ops/test_trees.py tests/ops/test_scan.py tests/ops/test_numba_kernels.py
LOWEST += tests/e2e/test_command_line.py tests/e2e/test_train_cli.py tests/report tests/runs/test_tree_runs.py
test-lowest: $(READY)
	$(INSTALL) uv
	rm -rf .venv-lowest && $(PYTHON) -m venv .venv-lowest
	echo 'torch==$(LOWEST_TORCH)' > .venv-lowest/torch.txt
	$(BIN)/uv pip compile --quiet --no-deps --resolution lowest-direct -c .venv-lowest/torch.txt pyproject.toml \
	  --python .venv-lowest/bin/python --no-header --no-annotate -o .venv-lowest/lowest.txt
	cat .venv-lowest/lowest.txt
	.venv-lowest/bin/pip install --disable-pip-version-check -r .venv-lowest/lowest.txt -e . \
	  pytest pytest-timeout pytest-xdist hypothesis beartype scikit-learn pandas polars networkx openpyxl pyyaml
	.venv-lowest/bin/pytest -n 2 --dist worksteal -m "not torture" -W ignore::DeprecationWarning --timeout 900 $(LOWEST) # old and new packages meet, and old Numba compiles slowly

# which lines the tests run; the sampling of Python 3.12 and newer makes it cheap
coverage: $(READY)
	COVERAGE_CORE=sysmon $(BIN)/pytest -n 2 --dist worksteal --cov --cov-report=term:skip-covered --cov-report=html:build/coverage \
	  --cov-report=xml:build/coverage.xml

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

# sdist and wheel, in dist/
build: $(READY)
	rm -rf dist
	$(INSTALL) --quiet --group release
	$(BIN)/python -m build --outdir dist

# uv.lock after a change of dependencies; versions stay as they are
lock: $(READY)
	$(INSTALL) --quiet uv
	$(BIN)/uv lock

# everything that a release needs; ends with a list of what is missing
release-check: check site build
	$(BIN)/python release/check.py $(if $(TAG),--tag $(TAG))

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .venv-lowest build dist
