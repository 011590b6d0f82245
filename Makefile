# Each target does all its own set-up: a fresh clone needs no command before it.
.PHONY: help env demo test test-all lint lock clean

help:            ## this list
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

env:             ## make .venv with the locked packages (finds or installs uv and Python 3.12)
	@scripts/make-env.sh

demo: env        ## bisect a small repository made on the spot, on the virtual GPU (under 3 minutes)
	@.venv/bin/oombisect demo

test: env lint   ## linters, types, and every test but the slow ones
	.venv/bin/python -m pytest -m "not slow" $(PARALLEL)

test-all: env lint  ## every test
	.venv/bin/python -m pytest $(PARALLEL)

PARALLEL = -n auto --dist loadfile

lint: env
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

lock: env        ## pin the newest packages that resolve, with hashes, into requirements/
	.venv/bin/uv pip compile -q pyproject.toml --extra probe --extra bridge --extra serve --extra tensorboard --extra environments --group dev $(LOCK) -o requirements/dev.txt
	.venv/bin/uv pip compile -q pyproject.toml $(LOCK) -o requirements/driver.txt

LOCK = -c requirements/constraints.in --python-version 3.12 --python-platform x86_64-manylinux_2_28 --generate-hashes --custom-compile-command "make lock"

clean:           ## remove what make made
	rm -rf .venv .venv-uv .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
