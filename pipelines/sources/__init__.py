"""Where sentence pairs come from: text files, Multi30k, WMT14 through tensorflow-datasets."""
