"""The tab Segment: labels for a scan."""
