"""Many generations of one prompt with parts left out, archived."""
