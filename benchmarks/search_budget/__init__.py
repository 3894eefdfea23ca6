"""Final loss of a search against its whole cost, for every proposer."""
