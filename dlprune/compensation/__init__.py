"""Compensation: what remains is refitted so that the network computes what it computed before."""
