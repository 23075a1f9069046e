"""llama-server as a draft worker, over HTTP."""
