"""Programs for those who work on the project; nothing here is installed."""
