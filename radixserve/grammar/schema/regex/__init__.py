"""Patterns as languages: trees, automata, and back to patterns."""
