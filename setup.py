"""Installs configs/ as jaxemb/configs; all else is in pyproject.toml."""

import setuptools

setuptools.setup(
  packages=[*setuptools.find_packages(include=['jaxemb*']), 'jaxemb.configs'],
  package_dir={'jaxemb.configs': 'configs'},
)
