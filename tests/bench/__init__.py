"""Benchmarks of the budgets in the design: `python -m tests.bench`. README.md says how each figure is measured."""
