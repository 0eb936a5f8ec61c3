# Everything runs in .venv. make creates it on first use, and again when pyproject.toml changes. There are two stages: rowlock alone,
# which is enough for the demo, and then the tools of `make test` and `make check`, which take much longer.
#   make test ARGS="-k retry -x"      WORKERS=4 make test      PYTHON=python3.12 make test

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
READY := $(VENV)/.ready
WORKERS ?= 4
ARGS ?=
BENCH := .bench/venv
DURATION ?= 2h

# Some shells set it. Tests start hundreds of interpreters, and each of them would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test proof faults faults-long bench bench-quick check format clean ui ui-test ui-load js js-test

help: ## list these targets
	@grep -E '^[a-z-]+:.*##' $(firstword $(MAKEFILE_LIST)) | awk -F ':.*## ' '{ printf "make %-11s %s\n", $$1, $$2 }'

demo: $(INSTALLED) ## show rowlock at work, in this terminal and on a page (ARGS="--for 30" ends it after 30 s)
	@$(BIN)/rowlock demo $(ARGS)

test: $(READY) ## run the tests (ARGS="-k name" goes to pytest, WORKERS=n in parallel)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

proof: $(READY) ## try to break every promise (docs/reliability.md); takes more than an hour
	@status=0; set -x; \
	ROWLOCK_PROOF=full $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "proof or not proof" tests/proof tests/core/test_cron.py $(ARGS) || status=1; \
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "proof or sampled" --ignore=tests/proof $(ARGS) || status=1; \
	exit $$status  # the second half runs even when a test of the first one fails, so that one run tells everything

ui-test: $(READY) ## test the page in a real browser: every screen, every action, on each database
	$(BIN)/python -m pytest -n $(WORKERS) -m "proof or not proof" tests/ui $(ARGS)

ui-load: $(READY) ## measure the page beside a million jobs, and under 5,000 changes a second for ten minutes
	$(BIN)/python -m benchmarks.page $(ARGS)

faults: $(READY) ## run every fault suite against real processes: about 15 minutes (ARGS="kills --seed 7")
	$(BIN)/python -m tests.faults $(ARGS)

faults-long: $(READY) ## run all faults mixed for DURATION=2h, and look for failures and growth
	$(BIN)/python -m tests.faults.soak --for $(DURATION) $(ARGS)

bench-quick: .bench/peers-quick ## measure rowlock beside some other queues; about two minutes (benchmarks/README.md)
	$(BENCH)/bin/python -m benchmarks --quick $(ARGS)

bench: .bench/peers ## measure everything beside every other queue; more than an hour
	$(BENCH)/bin/python -m benchmarks $(ARGS)

check: $(READY) ## check lint, formatting, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/sync_twin.py --check
	$(BIN)/python tools/openapi.py --check
	$(BIN)/python tools/sql.py --check
	$(BIN)/python tools/js_types.py --check
	$(BIN)/python tools/built.py --check

ui: $(READY) ui/node_modules/.ready ## build the admin page from ui/ (needs Node 20 or later; the result is checked in)
	cd ui && npm run --silent check && npm run --silent build
	$(BIN)/python tools/built.py ui

ui/node_modules/.ready: ui/package-lock.json
	cd ui && npm install --no-save --silent  # not ci: the bundler for other systems than ours is not in the lock file
	touch $@

js: $(READY) js/node_modules/.ready ## build the npm package in js/ (needs Node 20 or later; the result is checked in)
	$(BIN)/python tools/js_types.py
	cd js && npm run --silent build && npm run --silent check
	$(BIN)/python tools/built.py js

js-test: $(READY) ## test the npm package in Node, against a real server on each database
	$(BIN)/python -m pytest -n $(WORKERS) -m "proof or not proof" tests/js $(ARGS)

js/node_modules/.ready: js/package-lock.json
	cd js && npm install --no-save --silent
	touch $@

format: $(READY) ## format the sources, and write the generated files
	$(BIN)/python tools/sync_twin.py
	$(BIN)/python tools/openapi.py
	$(BIN)/python tools/js_types.py
	$(BIN)/python tools/sql.py
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

clean: ## remove .venv and everything else that make has created
	rm -rf $(VENV) .bench benchmarks/node/node_modules benchmarks/node/flows/node_modules ui/node_modules js/node_modules build dist .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml tools/venv
	tools/venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[all]'
	touch $@

$(READY): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'  # the first that knows --group
	$(BIN)/python -m pip install --quiet --editable '.[all]' --group dev
	touch $@

# The benchmark installs rowlock as users do: as a wheel, built again when the sources change. The other queues are a dependency group of
# pyproject.toml with the same name as the target.
.bench/peers-quick .bench/peers: pyproject.toml tools/venv $(shell find src -name '*.py' -o -name '*.sql')
	test -x $(BENCH)/bin/python || { mkdir -p .bench && tools/venv $(BENCH); }
	$(BENCH)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BENCH)/bin/python -m pip install --quiet '.[all]' --group $(@F)
	$(BENCH)/bin/python -m pip install --quiet --force-reinstall --no-deps .  # the version is the same, the code is not
	touch $@
