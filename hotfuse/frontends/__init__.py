"""Front ends: models become graphs."""
