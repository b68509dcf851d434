"""Loads that change: shuffles, surges, shifting hot keys, and paradigms side by side."""
