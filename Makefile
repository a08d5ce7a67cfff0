# Two commands set everything up: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
# Which tests: `make test MARKS=slow` the slow ones alone, `make test MARKS=` all of them in one session.
MARKS ?= not slow

# Compiled modules halve the start of a test session and of every program that it starts.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint types bench clean

demo: .venv/.demo
	$(BIN)/packtrain run --demo --out runs/demo

test: .venv/.dev
	$(BIN)/python -m pytest -m "$(MARKS)" -n 2 --dist worksteal

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.dev
	$(BIN)/mypy

bench: .venv/.dev
	$(BIN)/python -m tests.bench.bench_plan

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.demo: .venv/bin/python pyproject.toml
	@echo "installing packtrain into .venv, once; this takes a minute or more"
	$(BIN)/python -m pip install --quiet --editable ".[fast]"
	touch $@

# torch comes first and by itself: any other way of asking for it may bring gigabytes of CUDA.
.venv/.dev: .venv/bin/python pyproject.toml
	@echo "installing torch and the development tools into .venv, once; this takes some minutes"
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --editable ".[fast,dev]"
	touch $@ .venv/.demo

clean:
	rm -rf .venv runs build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
