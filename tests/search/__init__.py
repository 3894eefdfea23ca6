"""Tests of fuseprompt.search."""
