"""Models that the tab Explore can look into."""
