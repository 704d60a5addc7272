"""Model folders of Hugging Face, read and written without its libraries.

``tensors`` is a folder's weights, ``origin`` what else lies in it, ``mapping`` how a tensor becomes a parameter; a
file for each family of models says which ones, and what its config means. ``reading`` and ``writing`` put them
together; ``importing`` makes a run folder.
"""
