# Every target sets up what it needs: Python 3.11 or newer, git and make are enough to start.
PYTHON ?= python3

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/pip --disable-pip-version-check

# A chapter is a notebook in book/; _toc.yml gives their order on the page.
CHAPTERS := $(sort $(wildcard book/*.ipynb))
EXECUTED := $(CHAPTERS:book/%=_build/executed/%)
LIBRARY := $(sort $(shell find src -name '*.py'))
RESULTS := $(CURDIR)/_build/results
PAGE := _config.yml _toc.yml $(wildcard book/*.md book/_static/*)

# Chapters and test files run JOBS at a time, each on its share of the cores: small models gain little from more than one.
JOBS ?= 2
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
export OMP_NUM_THREADS ?= $(shell expr $(CORES) / $(JOBS) \| 1)

export TOKENIZERS_PARALLELISM := false
export HF_HUB_DISABLE_TELEMETRY := 1
export PYTHONHASHSEED := 0

.DELETE_ON_ERROR:
.PHONY: help book html outputs test zoo constraints clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

book: ## execute copies of the chapters that changed, render them to _build/html/index.html
	@if $(MAKE) -qs _build/html/.book; then \
	    echo "Nothing has changed since the last make book."; else $(MAKE) -s -j$(JOBS) _build/html/.book; fi
	@echo "The book, executed here: _build/html/index.html"

html: ## render the outputs stored in book/ to _build/html/index.html; execute nothing
	@if $(MAKE) -qs _build/html/.stored; then \
	    echo "Nothing has changed since the last make html."; else $(MAKE) -s _build/html/.stored; fi
	@echo "The book, as stored: _build/html/index.html"

outputs: ## execute the chapters that changed and store their outputs in book/
	@$(MAKE) -s -j$(JOBS) $(EXECUTED)
	@for copy in $(EXECUTED); do \
	    cmp -s $$copy book/$${copy##*/} || cp -v $$copy book/; touch $$copy; done
	@mkdir -p results && cp $(RESULTS)/*.json results/
	@$(BIN)/python -c 'from retrieval_heads.chapters import first_figure; \
	    first_figure("book/kv_retrieval.ipynb", "book/_static/head_map.png")' # the README shows it
	@echo "book/ stores the outputs of the last run; git diff shows what they changed"

# nbval runs every chapter again and compares what its cells print with the stored outputs (not the pixels of figures).
test: $(INSTALLED) ## unit tests, the examples in docstrings, and every chapter against its stored outputs
	@$(BIN)/retrieval-heads fetch # or a cell that fetches says so, which is no output of the chapter
	@rm -rf _build/tested && mkdir -p _build && cp -r results _build/tested # what the chapters measure now goes there
	@RETRIEVAL_HEADS_RESULTS=$(CURDIR)/_build/tested CUDA_VISIBLE_DEVICES= $(BIN)/python -m pytest -q \
	    -n $(JOBS) --dist loadfile --no-loadscope-reorder --nbval --nbval-current-env --nbval-sanitize-with=tests/nbval_sanitize.cfg \
	    $(CHAPTERS) tests src

zoo: $(INSTALLED) ## train every model of the zoo from nothing (about an hour each on one core) and store them in zoo/
	@for name in $$($(BIN)/python -c 'from retrieval_heads.training.recipes import RECIPES; print(*RECIPES)'); do \
	    test -f _build/zoo/$$name/record.json || $(BIN)/retrieval-heads train zoo/$$name || exit 1; \
	    mkdir -p zoo/$$name && cp _build/zoo/$$name/* zoo/$$name/; done

clean: ## delete what was built; the installed packages stay in .venv
	rm -rf _build build .pytest_cache .ruff_cache .hypothesis src/*.egg-info
	find src tests book -name __pycache__ -o -name .ipynb_checkpoints | xargs rm -rf

# A stamp, so that pip runs only when what it would install has changed. A failed run leaves none.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; $(PYTHON) is " + sys.version.split()[0] + \
	    ". Another one: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); \
	    echo "$(PYTHON) cannot make a virtual environment (Debian and Ubuntu: apt install python3-venv)"; exit 1; }
	@echo "Installing into $(VENV): a few minutes the first time"
	@$(PIP) install -q -c constraints.txt -e '.[book,test]'
	@touch $@

# A chapter runs again when it, the library or a package's version has changed, and not when only .venv is new.
_build/executed/%.ipynb: book/%.ipynb $(LIBRARY) constraints.txt | _build/.ready
	RETRIEVAL_HEADS_RESULTS=$(RESULTS) CUDA_VISIBLE_DEVICES= $(BIN)/retrieval-heads run $* --output $@

# What chapters need is fetched first: a download's bar is no output of a chapter. Each replaces its part of the results.
_build/.ready: | $(INSTALLED)
	@mkdir -p _build/executed && $(BIN)/retrieval-heads fetch
	@test -d $(RESULTS) || cp -r results $(RESULTS)
	@touch $@

# The scorecard reads what the others measured.
_build/executed/scorecard.ipynb: $(filter-out %/scorecard.ipynb,$(EXECUTED)) claims.yml

# Both render a staged copy of the book into the one _build/html, and each takes away the other's stamp.
_build/html/.book: $(EXECUTED) $(PAGE) | $(INSTALLED)
	$(call render,$(EXECUTED))

_build/html/.stored: $(CHAPTERS) $(PAGE) | $(INSTALLED)
	$(call render,$(CHAPTERS))

# $(call render,NOTEBOOKS). Only files that differ are copied, with a new time: Sphinx goes by that. Staging also keeps
# it from searching .venv for pages.
define render
@mkdir -p _build/source/book/_static _build/html && rm -f _build/html/.book _build/html/.stored
@stage() { cmp -s "$$1" "_build/source/$$2" || cp "$$1" "_build/source/$$2"; }; \
    for file in $(PAGE); do stage $$file $$file; done; \
    for file in $(1); do stage $$file book/$${file##*/}; done
@echo "Rendering the book"; $(BIN)/jupyter-book build -qW --keep-going _build/source --path-output . > _build/render.log \
    || { cat _build/render.log; exit 1; }
@touch $@
endef

# The versions that a new installation gets now, torch's aside: that is raised by hand, in constraints.txt.
constraints: ## write constraints.txt anew from the newest versions (then: make outputs test)
	rm -rf _build/fresh && $(PYTHON) -m venv _build/fresh
	grep '^torch==' constraints.txt > _build/fresh/torch.txt
	_build/fresh/bin/pip install -q -c _build/fresh/torch.txt -e '.[book,test]'
	{ sed -n '/^#/p' constraints.txt; _build/fresh/bin/pip freeze --exclude-editable \
	    | sed 's/+[a-z0-9.]*$$//' | grep -Ev '^(nvidia|cuda)-|^triton=' | LC_ALL=C sort -f; } > _build/fresh/constraints.txt
	mv _build/fresh/constraints.txt constraints.txt && rm -rf _build/fresh
