"""normalization operators."""
