"""The tab Explore: codes, and the images that they stand for."""
