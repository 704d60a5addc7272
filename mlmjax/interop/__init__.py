"""Weights in other libraries' formats."""
