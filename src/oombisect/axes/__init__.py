"""Axes: ordered lines of points from good to bad, whatever the points are."""
