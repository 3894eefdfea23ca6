"""How well each transfer orders tokens, against their exact losses."""
