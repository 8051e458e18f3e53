-- Namespaces take turns in telling how calls ended. Who is next is read from the index alone: rows hold whole bodies.
DROP INDEX async_calls_by_destination;
CREATE INDEX async_calls_by_destination ON async_calls (destination_due_unix_ms, namespace, destination, id);
