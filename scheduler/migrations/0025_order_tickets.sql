-- Since when orders have tickets, Unix time in seconds. NULL until the first scheduler that writes them has led.
ALTER TABLE master_key ADD COLUMN tickets_unix_s BIGINT;
