"""Self-pretraining for sequence classification: tasks, models, training, analysis."""

__version__ = "0.1.0"
