"""Images with a hole, and several ways to fill it."""
