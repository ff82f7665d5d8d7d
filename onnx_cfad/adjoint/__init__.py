"""How regions are run backwards: the sweep, adjoints of loops and branches, residuals."""
