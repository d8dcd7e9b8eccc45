"""Training an index: the stages of a run, the generator's examples, loss and trainer, and the weights of search."""
