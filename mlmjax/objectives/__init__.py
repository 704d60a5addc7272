"""One file an objective: (model, batch, context) -> Loss, a pure function."""
