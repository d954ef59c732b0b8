"""Any record, shown: as text in the terminal, or as one HTML file.  Reports compute nothing."""
