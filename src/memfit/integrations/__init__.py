"""memfit inside other trainers, and what watches a run from outside."""
