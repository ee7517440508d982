"""Segmentation with an anatomical prior: shapes from label maps, then labels for scans that have none."""
