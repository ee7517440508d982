"""A GAN whose generator writes symbols."""
