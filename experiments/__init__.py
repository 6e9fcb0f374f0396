"""The claims of the notes, one file each: run, measured, and told as they came out."""
