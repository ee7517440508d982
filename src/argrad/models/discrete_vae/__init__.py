"""The discrete variational auto-encoder."""
