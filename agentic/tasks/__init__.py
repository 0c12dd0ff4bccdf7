"""Data sets: where repair tasks come from and how a data set folder is laid out."""
