"""TVM in two builds, Relay (0.19) and Relax (current), each in worker processes with an environment of its own."""
