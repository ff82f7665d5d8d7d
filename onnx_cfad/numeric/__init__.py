"""Numerical differentiation of a primal model: the check that shares nothing with the rules."""
