ALTER TABLE functions ADD COLUMN namespace TEXT NOT NULL DEFAULT 'default' REFERENCES namespaces (name);
ALTER TABLE functions DROP CONSTRAINT functions_name_key;
ALTER TABLE functions ADD UNIQUE (namespace, name);
