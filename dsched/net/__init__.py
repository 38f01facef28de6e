"""The wire over Twisted: connections that carry frames, and who may open how many of them."""
