"""What the package is used for, one module per task."""
