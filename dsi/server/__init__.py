"""An index behind HTTP (`dsi serve`), and the page that shows its searches; needs the extra `server`."""
