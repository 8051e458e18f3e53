-- Digest of a version's files but for fn.toml; NULL if an earlier version of the platform recorded the version.
ALTER TABLE versions ADD COLUMN code TEXT;
-- The version whose files it uses as well, as JSON.
ALTER TABLE versions ADD COLUMN reused TEXT;
