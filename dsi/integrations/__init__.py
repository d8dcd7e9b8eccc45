"""Bridges to other libraries, each imported only when it is asked for; the rest of `dsi` does not need them."""

from dsi.names import LIBRARY, check_names

check_names(*LIBRARY)
