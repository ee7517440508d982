"""The tab Compare: runs side by side."""
