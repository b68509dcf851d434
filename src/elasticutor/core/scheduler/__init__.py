"""The dynamic scheduler (paper 4): how many cores each executor gets, and which ones."""
