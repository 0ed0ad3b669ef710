"""Constituency trees: reading treebanks, trees as target strings, and back (section 6.3)."""
