"""The search: who proposes, what is judged exactly, what lives on."""
