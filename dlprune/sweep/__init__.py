"""One model pruned in many ways, side by side."""
