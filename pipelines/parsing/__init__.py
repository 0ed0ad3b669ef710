"""Constituency parsing (section 6.3): treebanks, trees as target strings, and back."""
