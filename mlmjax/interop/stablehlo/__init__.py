"""A run as a program for serving, in StableHLO by ``jax.export``: jax runs it, without mlmjax and flax.

``programs`` says what a model computes, ``lowering`` makes an artifact of it, ``writing`` the folder, and
``readme`` its README.
"""
