"""The objective: terms with weights, problems with targets."""
