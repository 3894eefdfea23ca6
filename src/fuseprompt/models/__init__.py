"""Models of all families behind a few protocols."""
