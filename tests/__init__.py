"""Tests; a package, so that they can import what they share (the corpus, the widening to float64) by name."""
