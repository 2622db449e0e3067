"""HALCON's deep-learning procedures: what HDevelop builds on the operators, under the same names."""
