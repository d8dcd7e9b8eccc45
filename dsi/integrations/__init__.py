"""Bridges to other libraries, each imported only when it is asked for; the rest of `dsi` does not need them."""
