"""A classifier and a generator of each class, from a few labels and many examples."""
