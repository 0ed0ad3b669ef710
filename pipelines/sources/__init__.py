"""Sources of sentence pairs: text files, Multi30k, and WMT14 through tensorflow-datasets."""
