"""Time, memory and growth, beside what a user would take instead (`dsi benchmark-…`)."""
