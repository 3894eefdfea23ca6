"""Text and tokens: tokenizers, tables between two of them, words.

Read next: `fuseprompt.text.tokenizer`.
"""
