"""Recipes across history: which function a name means at a commit, and how two resolved configs differ."""
