"""The tab Complete: several ways to fill a hole in a picture."""
