"""Adapting while a model serves: what is hot, what is to be built, when it takes over and when it leaves again."""
