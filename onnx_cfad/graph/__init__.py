"""Read-only analyses of a model: regions, types, activity, trip counts, purity, cost."""
