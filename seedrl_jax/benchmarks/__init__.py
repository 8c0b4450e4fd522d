"""Measures what each stage does alone and what the whole makes of it."""
