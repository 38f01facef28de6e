"""`dsched demo`: one sharded run over real files, on real processes, with a worker killed on the way.

`census.py` is `examples/census.py`, linked in so that an installation carries it too.
"""
