"""Synthetic routing traces, and the statistics by which they are held against recorded ones."""
