"""An image as a small grid of codes from one vocabulary, and back."""
