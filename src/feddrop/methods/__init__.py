"""Methods: one file each, each a factory that returns a Method. They never import each other."""
