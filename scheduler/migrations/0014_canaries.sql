-- The last canary of each function, as JSON. One that is open grows, is finished, or is rolled back by the leader.
CREATE TABLE canaries (
    function_id BIGINT PRIMARY KEY REFERENCES functions (id),
    is_open BIGINT NOT NULL,
    canary TEXT NOT NULL
);
