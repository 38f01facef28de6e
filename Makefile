# make demo and make test do their own set-up, in .venv; it is repeated only when one of these files changes.
set_up_by = setup.cfg pyproject.toml scripts/set_up.sh
python = .venv/bin/python

.PHONY: demo test lint soak bench clean

demo: .venv/ready
	.venv/bin/dsched demo

test: lint
	$(python) -m pytest

lint: .venv/ready-test
	$(python) -m ruff check .
	$(python) -m mypy

# More examples of each property, and the tests that run for minutes.
soak: .venv/ready-test
	$(python) -m pytest -m "soak or not integration" --hypothesis-profile=soak
	$(python) -m dsched.testing.scenario --seeds 0:5000 --jobs 2 --per-kind 500 --per-pair 30
	$(python) -m tests.integration.rounds core=100 worker=100 restart=20 stop=30 leader=50
	$(python) -m tests.integration.rounds server=50 halt=10 outage=1 deadlock=10000
	$(python) -m tests.integration.rounds core=20 worker=20 restart=5 leader=10 --store mariadb

bench: .venv/ready
	$(python) benchmarks/throughput.py

clean:
	rm -rf build dist dsched.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis _trial_temp*
	rm -f twisted/plugins/dropin.cache twistd.pid twistd.log*
	find . -path "./.venv*" -prune -o -name __pycache__ -type d -exec rm -rf {} +

.venv/ready: $(set_up_by)
	scripts/set_up.sh

.venv/ready-test: $(set_up_by)
	scripts/set_up.sh test
