"""Checkpoints of MAE's own code, read without PyTorch.

``archive`` is a file of ``torch.save`` and its tensors, ``layout`` what the tensors of MAE's ``models_mae.py``
become, and ``reading`` puts them together.
"""
