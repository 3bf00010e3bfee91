from spack.package import *


class PyEchelon(PythonPackage):
    """Takes a training script from one GPU to a whole supercomputer, and knows the machine so that its user does not
    have to."""

    license("Apache-2.0")

    version("0.1.0")

    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-hatchling@1.24:", type="build")
    depends_on("py-tomli@2:", when="^python@:3.10", type=("build", "run"))

    import_modules = ["echelon"]
