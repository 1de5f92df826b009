"""The same eleven programs, as one writes them with the openai SDK."""
