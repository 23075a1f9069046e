"""Results as tables, pages and files, with the machine and commit that produced them."""
