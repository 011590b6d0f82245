"""The fixture repository of all tests about histories."""

from tests.repo.project import project, template

__all__ = ["project", "template"]
