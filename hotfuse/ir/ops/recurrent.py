"""recurrent operators."""
