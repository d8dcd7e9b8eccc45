"""Training of the generator: examples, the loss of a batch, the trainer. Knows no index and no folders of a run."""
