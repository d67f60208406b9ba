"""Small whole programs."""
