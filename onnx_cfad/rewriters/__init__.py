"""Passes that keep the meaning of a model."""
