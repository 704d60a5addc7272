"""Protocols over a trained model: each a function of a model and data, apart from the training loop."""
