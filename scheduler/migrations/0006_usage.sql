-- What each function's invocations have come to, by gateway; those of gateways that ended are added up under ''. JSON of the wire type.
CREATE TABLE invocation_counts (
    function_id BIGINT NOT NULL REFERENCES functions (id),
    gateway TEXT NOT NULL,
    counts TEXT NOT NULL,
    PRIMARY KEY (function_id, gateway)
);

CREATE INDEX invocation_counts_by_gateway ON invocation_counts (gateway);

-- How long each function was idle between its calls: a histogram, as JSON.
CREATE TABLE idle_times (
    function_id BIGINT PRIMARY KEY REFERENCES functions (id),
    histogram TEXT NOT NULL
);
