"""Studies and benchmarks of fuseprompt. They are no part of the installed package."""
