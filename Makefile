# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup browser demo test torture check format clean

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

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright --level error
	$(BIN)/lint-imports --no-cache
	$(BIN)/codespell src tests docs README.md CONTRIBUTING.md CHANGELOG.md

test: $(READY) browser check
	$(BIN)/pytest -n 2

# kills, power cuts, failing disks and flipped bits, for so many seconds; seeds and tallies are printed
SECONDS := 600
torture: $(READY)
	DYGMAMBA_TORTURE=$(SECONDS) $(BIN)/pytest -s tests/torture

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build dist
