"""Modules that models are built of, as flax nnx modules with logical axis names."""
