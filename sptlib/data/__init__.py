"""Data on disk: what there is, where it lies, how it gets there, and its cache of tensors."""
