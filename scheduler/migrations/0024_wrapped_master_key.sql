-- The master key as a key service wrapped it, if it is kept that way: the service's name of its key, the cluster it is wrapped for, and what the
-- service gives the master key back for. NULL where the key is in a file or comes from a command.
ALTER TABLE master_key ADD COLUMN wrapped_by TEXT;
ALTER TABLE master_key ADD COLUMN wrapped_for TEXT;
ALTER TABLE master_key ADD COLUMN wrapped BLOB;
