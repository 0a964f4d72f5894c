"""Every value that crosses a boundary, once: what the API takes and gives, and what travels."""
