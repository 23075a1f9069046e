"""Server of a draft worker: one small model that drafts for many sessions."""
