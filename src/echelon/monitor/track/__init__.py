"""Writes the numbers of a run to trackers: TensorBoard, MLflow, Weights & Biases."""
