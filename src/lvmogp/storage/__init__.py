"""Files of tensors, and the checkpoints of long fits."""
