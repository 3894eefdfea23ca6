"""What the jobs reach, each beside its rivals at the same cost: journals, tables, pages."""
