"""The C extension: the C reader is one header, taken from where it lies beside this package, or from the sdist."""

import pathlib
import shutil

import numpy
from setuptools import Extension, setup

here = pathlib.Path(__file__).resolve().parent
header = here / "src" / "rhumb_snapshot" / "rhumb_snap.h"
source = here.parent / "c" / "rhumb_snap.h"
if source.exists():
    shutil.copyfile(source, header)

setup(
    ext_modules=[
        Extension(
            "rhumb_snapshot._snap",
            sources=["src/rhumb_snapshot/_snap.c"],
            depends=["src/rhumb_snapshot/rhumb_snap.h"],
            include_dirs=[numpy.get_include(), "src/rhumb_snapshot"],
            define_macros=[("_GNU_SOURCE", "1"), ("NPY_NO_DEPRECATED_API", "NPY_1_22_API_VERSION")],
            extra_compile_args=["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Wno-cast-function-type"],
            libraries=["m"],
        )
    ]
)
