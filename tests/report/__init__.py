"""Tests of what the command line and the documents show."""
