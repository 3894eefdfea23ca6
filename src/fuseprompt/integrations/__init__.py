"""Other libraries that our jobs plug into; each module needs its library."""
