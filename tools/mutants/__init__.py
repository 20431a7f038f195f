"""Small random changes of the package, and the tests that notice them: ``dev.py mutants``.

`python` and `sql` find the places of a text that an operator can change, `drawing` draws some of them by a
seed, `selection` finds the tests that reach a place, `trial` runs these tests in a scratch copy of the
checkout, and `report` writes what no test has noticed.

It is a tool of our own because those of the field (mutmut, cosmic-ray and others) leave SQL alone, in which
most guards of this library are. They also run all mutants of a module, by all tests or in forks of a process
that has loaded them, where this one needs few mutants of many modules, each with the few tests that reach it.
"""
