"""A stand-in for Singularity and Apptainer that hides the host, built on bubblewrap.

Inside is /usr without Slurm, munge and echelon, the Python that the image names, /proc, /dev, /sys, /tmp,
the home and the working directory, and the binds asked for. An image is a small text file (`image.py`).

Known differences to the real ones:

- /usr is the host's, so a library of the host is found where a real image may lack it; --nv and --rocm
  bring nothing in, as on a host without drivers.
- It needs root. There is no user namespace, no fakeroot, no overlay image, no instance, no `shell`.
- What the command leaves running is killed when it ends; the real ones leave that to Slurm.
- The process ids are the host's, as with the real ones, unless asked for otherwise with --pid.
"""

from .image import Image

__all__ = ["Image"]
