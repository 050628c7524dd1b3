"""What the hardware offers."""
