"""Tests of fuseprompt.methods."""
