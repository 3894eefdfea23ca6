"""Text and tokens: tokenizers, tables between two of them, words."""
