"""A report on one pruning: an HTML page that needs nothing else, and its numbers as JSON and CSV."""
