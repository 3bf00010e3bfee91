"""Stands for Horovod 0.28.1, which takes ten minutes to build."""
