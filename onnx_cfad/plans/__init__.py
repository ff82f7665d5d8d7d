"""Plans: which adjoint each control-flow site gets, and why."""
