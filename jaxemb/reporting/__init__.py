"""The parts of the page that `jaxemb.report` writes."""
