"""Large bodies read in a process of their own: `reader` sends them there, `process` reads them, `form` is between."""
