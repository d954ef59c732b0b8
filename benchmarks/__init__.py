"""What memfit's figures cost and how true they are: one command each, a table each."""
