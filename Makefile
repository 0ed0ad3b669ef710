# Every target makes what it needs, the virtual environment included: .venv, Python 3.11 or later.
PYTHON ?= python3.11
# The versions that were tested.
PIP = .venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
RUN = runs/demo
# A file of tests stays on one core, so that what its tests share is made once. Compiled Python is
# kept: many of the tests' processes import the code.
PYTEST = PYTHONDONTWRITEBYTECODE= .venv/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=15

.PHONY: demo test test-slow torture properties soak quality lint site audit bench clean

demo: .venv/installed  ## train, score, export and translate with a small model: 3 minutes on 2 cores
	@rm -rf $(RUN)/export
	@.venv/bin/python -m t2t_repro.train --workdir=$(RUN)
	@echo && echo "Scores on the 500 test sentences:"
	@.venv/bin/python -m t2t_repro.evaluate --workdir=$(RUN)
	@grep -qE '"sacrebleu": (9[0-9]|100)' $(RUN)/results.json \
		|| { echo "BLEU is below 90: something is wrong"; exit 1; }
	@echo && echo "Export:"
	@.venv/bin/python -m t2t_repro.export --workdir=$(RUN) --export_dir=$(RUN)/export
	@echo && echo "Three sentences through it:"
	@printf '%s\n' $(SENTENCES) > $(RUN)/examples.en
	@.venv/bin/python -m t2t_repro.translate --saved_model=$(RUN)/export \
		< $(RUN)/examples.en > $(RUN)/examples.de
	@paste -d '\n' $(RUN)/examples.en $(RUN)/examples.de | sed 's/^/  /'
	@echo && echo "Next:"
	@echo "  .venv/bin/tensorboard --logdir=$(RUN)"
	@echo "  .venv/bin/python -m t2t_repro.translate --workdir=$(RUN)     # type sentences"
	@echo "  .venv/bin/pip install '.[serve]' && .venv/bin/python -m t2t_repro.serve --export_dir=$(RUN)/export"
	@echo "  .venv/bin/python -m t2t_repro.train --problem=parallel_text --help"

SENTENCES = \
	"On Sunday, the teacher does not want to close the small window." \
	"We know that my sister called the doctor on March 3rd, 2015." \
	"Because the house is old, twenty-one children help the king."

test: .venv/installed-dev  ## all that catches a wrong number: 4 to 7 minutes on 2 cores
	$(PYTEST) -m "not slow"

test-slow: .venv/installed-dev  ## the rest, workers and kills for real: 13 to 27 minutes on 2 cores
	$(PYTEST) -m slow

torture: .venv/installed-dev  ## kills, full disks and the like: 22 minutes on 2 cores
	.venv/bin/python tests/torture

properties: .venv/installed-dev  ## 20,000 examples for each reader of a file
	EXAMPLES=20000 $(PYTEST) -m slow tests/test_config_properties.py tests/pipelines/test_reader_properties.py \
		tests/serving/test_export_files.py

soak: .venv/installed-dev  ## does anything grow? an hour of training, 200,000 requests: 1 hour on 2 cores
	.venv/bin/python tests/torture soak

quality: .venv/installed-dev  ## has a change cost translation quality? 9 minutes on 2 cores
	.venv/bin/python -m pytest tests/quality.py --capture=no --timeout=7200

lint: .venv/installed-dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

site: .venv/installed-dev  ## the documentation as HTML in site/, and a check of its links: 5 seconds
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet

audit: .venv/installed-dev  ## known vulnerabilities of the versions in constraints.txt; needs a network
	.venv/bin/python tests/audit.py

bench: .venv/installed
	.venv/bin/python -m t2t_repro.bench train
	.venv/bin/python -m t2t_repro.bench decode
	.venv/bin/python -m t2t_repro.bench input

clean:
	rm -rf .venv build dist site *.egg-info

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: setup.py constraints.txt | .venv/bin/python
	@echo "installing TensorFlow and the rest into .venv (2.6 GB)"
	@$(PIP) --editable .
	@touch $@

.venv/installed-dev: setup.py constraints.txt | .venv/bin/python
	@echo "installing everything and the developers' tools into .venv (4 GB)"
	@$(PIP) --editable ".[dev]"
	@touch $@ .venv/installed
