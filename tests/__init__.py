"""The tests of fuseprompt; the folders mirror those of the package."""
