"""Training an index: the stages of a run, and what a training is refused for."""
