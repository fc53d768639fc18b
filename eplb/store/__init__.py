"""The store: Redis or Valkey by URL, or an embedded one."""
